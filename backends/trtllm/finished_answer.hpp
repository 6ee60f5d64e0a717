#pragma once

#include <string>

#include "backends/trtllm/context_reply.hpp"
#include "backends/trtllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

// A request that ended in the context phase: its reply is the client's answer.
namespace handoff::trtllm {

/// The reply without what only the other engine needs.
std::string whole_answer(const ContextReply& reply);

/// The same as server-sent events: the text, the finish reason, the usage if `body` asks for it, [DONE].
std::string streamed_answer(const sdk::Host& host, const ContextReply& reply, const sdk::Object& body,
                            Api api);

}  // namespace handoff::trtllm
