// A request that goes to the local engine as it is.
#pragma once

#include <span>

#include "sidecar/cancel_source.hpp"
#include "sidecar/client_connection.hpp"
#include "sidecar/leg_head.hpp"
#include "sidecar/loop_services.hpp"
#include "sidecar/request_context.hpp"
#include "sidecar/response_relay.hpp"

namespace handoff::sidecar {

struct PassThroughOptions {
  std::span<const HeaderOverride> overrides = {};
  bool may_resend = false;
};

/// Sends the client's request to the local engine and relays the reply. Answers the client in every case but
/// its leaving. The references must outlive the coroutine.
Awaitable<ExchangeOutcome> pass_through(LoopServices& services, RequestContext& request,
                                        ClientConnection& client, ResponseRelay& relay, CancelSource& cancel,
                                        PassThroughOptions options);

/// What the client is told when the decode engine gave no answer.
Answer decode_failure_answer(LegFailure failure, ExchangeRecord& record);

}  // namespace handoff::sidecar
