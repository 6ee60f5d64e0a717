// What a request is, decided from its head (and later its body) alone.
#pragma once

#include <optional>
#include <string_view>

#include "sidecar/loop_services.hpp"
#include "sidecar/request_context.hpp"
#include "sidecar/sidecar_error.hpp"

namespace handoff::sidecar {

struct Refusal {
  SidecarError error;
  std::string_view message;  // empty: the error's own
  std::optional<std::string_view> param = std::nullopt;
};

enum class RouteKind {
  other,       // streams to the local engine
  generation,  // one of the backend's routes
  disguised,   // reaches one of the backend's handlers in the engine, under another spelling: guarded, never
               // disaggregated
  local_health,
  local_ready,
};

/// Whether the head is one that we serve at all.
std::optional<Refusal> check_head(const http1::RequestHead& head);

/// Sets request.path and says what the request is.
RouteKind classify_route(const SharedPlan& plan, RequestContext& request);

/// Reads the routing header of a generation request into request.prefill.
std::optional<Refusal> read_prefill_hint(const SharedPlan& plan, RequestContext& request);

/// Whether the engine might take the body for JSON, by its head.
bool may_be_json(const http1::RequestHead& head);

/// Checks a whole body for what only a sidecar may send. `strict`: on generation routes a body that can't be
/// looked into is refused as well. Leaves the scan in the request.
std::optional<Refusal> check_body(const SharedPlan& plan, RequestContext& request, bool strict);

}  // namespace handoff::sidecar
