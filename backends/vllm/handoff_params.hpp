#pragma once

#include <cstdint>
#include <string_view>

#include "backends/vllm/connector.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// What a prefill reply with a 2xx status brings. Everything is a view of the reply or a constant.
struct HandoffParams {
  enum class Kind : std::uint8_t {
    missing,  ///< prefill answered, but hands nothing over: decode can do the whole request
    invalid,  ///< something that must not reach the decode engine
    valid,
  };
  Kind kind = Kind::missing;
  std::string_view params;  ///< valid: the value of `kv_transfer_params`, byte for byte
  std::string_view reason;  ///< missing: a counter's name; invalid: a phrase that names the field
  std::string_view cause;   ///< missing: the likely cause, a sentence for the operator
};

/// Reads a prefill reply. An engine is not asked to be well-behaved: a handoff that lacks what decode needs
/// hangs the request there, and one with an empty `remote_block_ids` ends the whole engine.
/// `connector` is one of the two of NIXL: pushing, prefill needs no block ids from us, since decode tells it
/// where to write.
HandoffParams read_prefill_reply(const sdk::Host& host, std::string_view reply, Connector connector);

/// The prompt's token ids in a prefill reply, as a JSON list; empty if there are none.
std::string_view read_prompt_tokens(const sdk::Host& host, std::string_view reply);

}  // namespace handoff::vllm
