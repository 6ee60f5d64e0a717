// /v1/chat/completions and /v1/completions as trtllm-serve answers them.
#pragma once

#include "exchange.hpp"
#include "trtllm_run.hpp"

namespace handoff::mock {

Awaitable<void> serve_trtllm_generation(Exchange& exchange, TrtllmState& state, Api api);

// What the engine makes of a body, parameters and token ids included.
struct TrtllmRequest {
  ApiRequest request;
  TrtllmParams params;
};
std::variant<TrtllmRequest, ApiError> parse_trtllm_request(Api api, const Json& body,
                                                           const MockConfig& config);

// Flat, unlike OpenAI's.
std::string trtllm_error_body(const ApiError& error);

}  // namespace handoff::mock
