#pragma once

#include "backends/trtllm/context_reply.hpp"
#include "backends/trtllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

// A request that ended in the context phase: its reply is the client's answer.
namespace handoff::trtllm {

/// Answers the client of `body` with a finished reply, without what only the other engine needs. As a stream
/// if it asks for one: the text, the finish reason, the usage where it is asked for, [DONE].
void answer_from_context(const sdk::Host& host, const ContextReply& reply, const sdk::Object& body, Api api,
                         sdk::Turn& turn);

}  // namespace handoff::trtllm
