// The HTTP surface of an SGLang engine.
#pragma once

#include "exchange.hpp"
#include "sglang_scheduler.hpp"

namespace handoff::mock {

// Answers one request, 404 and 405 too. `bootstrap_port` is what /server_info says.
Awaitable<void> serve_sglang_route(Exchange& exchange, SglangScheduler& scheduler,
                                   std::int64_t bootstrap_port);
Awaitable<void> serve_sglang_generation(Exchange& exchange, SglangScheduler& scheduler, SglangApi api);

}  // namespace handoff::mock
