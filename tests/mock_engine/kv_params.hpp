// kv_transfer_params in a request body: where they stand, and which leg they make of it. Pure.
#pragma once

#include "api_request.hpp"

namespace handoff::mock {

// Which leg of a handoff a body belongs to, wherever its parameters are; used for the log and for fault
// rules. With shared storage, which has no parameters, the engine's role tells.
Leg leg_of(const Json& body, const MockConfig& config);

// What the scheduler gets: null, or an object.
Json effective_kv_params(Api api, const Json& body, const MockConfig& config);

}  // namespace handoff::mock
