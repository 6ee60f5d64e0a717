#pragma once

#include <string_view>

#include "backends/vllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// Why this request must run on the decode engine alone, as a counter's name; empty when a handoff can carry
/// it. The engine serves all of these, so none is refused; values that we can't judge count as a reason,
/// since decode-only is always right.
std::string_view decode_only_reason(const sdk::Host& host, const sdk::Object& body, const Endpoint& endpoint);

}  // namespace handoff::vllm
