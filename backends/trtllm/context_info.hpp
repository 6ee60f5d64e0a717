#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "backends/endpoints/endpoint_memory.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {

/// What a context engine says of itself, as far as a generation engine needs it.
struct ContextInfo {
  std::string params;    ///< `disaggregated_params` of its `/server_info`, byte for byte
  std::string endpoint;  ///< its first `ctx_info_endpoint`, a JSON string

  bool operator==(const ContextInfo& other) const = default;
};

/// Reads a `/server_info` reply. Nothing when the engine does not say where it is found: then it can't be
/// scheduled after generation.
std::optional<ContextInfo> read_server_info(const sdk::Host& host, std::string_view reply);

/// The answers of context engines: asking costs a round trip.
using ContextInfoMemory = endpoints::EndpointMemory<ContextInfo>;

}  // namespace handoff::trtllm
