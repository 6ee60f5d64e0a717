#pragma once

#include <string_view>

#include "backends/trtllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {

/// Why this request must run on the generation engine alone, as a counter's name; empty when a handoff can
/// carry it. Values that can't be judged count as a reason: decode-only is always right.
std::string_view decode_only_reason(const sdk::Host& host, const sdk::Object& body, Api api);

/// Whether the client wants server-sent events.
bool wants_stream(const sdk::Object& body);

}  // namespace handoff::trtllm
