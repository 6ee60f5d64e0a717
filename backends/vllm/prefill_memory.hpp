#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/endpoints/endpoint_memory.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// A data-parallel rank of a prefill endpoint with Mooncake.
struct PrefillRank {
  std::string rank;       ///< decimal
  std::string engine_id;  ///< a JSON string

  bool operator==(const PrefillRank& other) const = default;
};

/// Reads the reply of a Mooncake bootstrap server's `/query`; empty if it has no rank.
std::vector<PrefillRank> read_bootstrap(const sdk::Host& host, std::string_view reply);

/// Where an engine with NIXL push registers decode's blocks. Members of `kv_transfer_params`, as JSON text.
struct PushAddress {
  std::string engine_id;
  std::string host;
  std::string port;
  std::string tp_size;
  std::string pp_size;

  bool operator==(const PushAddress& other) const = default;
};

/// The address that a valid handoff names; nothing where it names no `tp_size`, or an engine of several
/// data-parallel ranks (`…_dp1`) that nobody `chose`: the next request may go to another rank.
std::optional<PushAddress> read_push_address(const sdk::Object& handoff, bool rank_was_chosen);

/// What is remembered of prefill engines, by endpoint (and rank).
struct PrefillMemory {
  endpoints::EndpointMemory<std::vector<PrefillRank>> bootstrap;
  endpoints::EndpointMemory<PushAddress> push;
};

}  // namespace handoff::vllm
