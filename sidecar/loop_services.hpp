// What the objects of one event loop share.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sidecar/backend_host.hpp"
#include "sidecar/background_calls.hpp"
#include "sidecar/counters.hpp"
#include "sidecar/deadline_queue.hpp"
#include "sidecar/forgery_guard.hpp"
#include "sidecar/memory_budget.hpp"
#include "sidecar/prefill_allowlist.hpp"
#include "sidecar/readiness.hpp"
#include "sidecar/sidecar_config.hpp"
#include "sidecar/upstream_leg.hpp"
#include "sidecar/upstream_pool.hpp"

namespace handoff::sidecar {

/// Decided at start and never changed: shared by all loops.
struct SharedPlan {
  SidecarConfig config;
  std::optional<LoadedBackend> backend;
  ForgeryGuard guard;
  PrefillAllowlist allowlist;
  /// Where requests without the routing header go; only with a backend.
  std::optional<PrefillEndpoint> usual_prefill;
  EngineAddress local_engine;
};

class BackendServices;
class RequestPool;

/// References to a loop's parts, owned by EventLoop. Nothing in here is touched by another thread, except
/// `plan`, which is constant, and `readiness`, which is atomic.
struct LoopServices {
  const SharedPlan& plan;
  Readiness& readiness;
  net::io_context& context;
  DeadlineQueue& deadlines;
  LegContext& legs;
  MemoryBudget& budget;
  RequestPool& requests;
  Counters& counters;
  BackgroundCalls& background;
  std::span<char> scratch;
  BackendInstance* backend = nullptr;
  BackendServices* backend_services = nullptr;
  bool draining = false;
  bool ending = false;
  std::set<UpstreamLeg*> lingering;  // legs that may outlive their exchange; the loop's end cancels them
};

}  // namespace handoff::sidecar
