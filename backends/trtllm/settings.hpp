#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "backends/missing_handoff/missing_handoff.hpp"
#include "backends/trtllm/handoff_signature.hpp"
#include "backends/trtllm/leg_bodies.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {

struct Settings {
  Schedule schedule = Schedule::context_first;
  missing_handoff::Policy on_missing_handoff = missing_handoff::Policy::decode_only;
  std::string auth_key;  ///< empty: handoffs are not signed
};

/// How long a generation request is left alone after its client has gone. Closing it while KV blocks are on
/// their way can wedge both engines; once its reply begins they have arrived.
inline constexpr std::uint32_t kLingerMs = 30'000;

/// Fields that a leg sets or removes. The signature is never the client's. A client's body is JSON, so a
/// header that calls it MessagePack could only make an engine read another request than the one we checked.
inline std::array<handoff_header, 2> leg_headers(std::string_view signature = {}) {
  return {sdk::header(kSignatureHeader, signature), sdk::header("x-trtllm-msgpack", "")};
}

}  // namespace handoff::trtllm
