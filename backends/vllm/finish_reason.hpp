#pragma once

#include <string_view>

#include "backends/vllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// `finish_reason` of the only choice, without quotes; empty where there is none (yet). A view of `json`,
/// valid until the entry returns.
std::string_view finish_reason(const sdk::Host& host, std::string_view json);

/// Whether a whole reply of that path has an answer in it: no error, and a choice with a finish reason, or
/// what the path has instead of choices.
bool is_answer(const sdk::Host& host, std::string_view json, const Endpoint& endpoint);

/// Whether an answer of that path ended before its token limit, so that a prefill engine hands nothing over.
/// False where the answer does not say.
bool ended_by_itself(const sdk::Host& host, std::string_view json, const Endpoint& endpoint);

/// Whether the object is an error in spite of its status.
bool is_error(const sdk::Host& host, std::string_view json);

/// Whether a reply of status 2xx says that the engine did not do what it was asked: an error, or an end by
/// one. What can't be read says nothing.
bool reports_failure(const sdk::Host& host, std::string_view json);

}  // namespace handoff::vllm
