#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "epp/ext_proc/protocol_messages.hpp"
#include "epp/planning/plan_ledger.hpp"
#include "epp/planning/planning_config.hpp"
#include "epp/planning/request_facts.hpp"
#include "epp/planning/worker_directory.hpp"
#include "epp/tokenization/tokenizer.hpp"

namespace handoff::epp {

// A route and the bookings behind it; dropped without publish(), it undoes itself.
struct PlannedRequest {
  RouteAnswer route;
  std::shared_ptr<Plan> plan;
  RequestKind kind = RequestKind::kAny;
  bool streams = false;
};
using PlanResult = std::variant<PlannedRequest, Refusal>;

// Who asked for a plan. Told once, from any thread, unless the run was cancelled before.
class PlanListener {
 public:
  virtual ~PlanListener() = default;
  virtual void on_plan(PlanResult result) = 0;
};

// A request that is being planned, for its stream.
class PlanningRun {
 public:
  virtual ~PlanningRun() = default;
  // Undoes whatever was done. The listener is not told after this returns, unless another thread is telling
  // it right now.
  virtual void cancel() = 0;
};

struct PlannerCounts {
  std::uint64_t requests = 0;
  std::uint64_t refused_inflight = 0;
  std::uint64_t tokenizer_failures = 0;  // routed by load alone, or refused
  std::uint64_t decode_only = 0;         // of paired kinds, by rule or for lack of prefill workers
  std::uint64_t rebooked = 0;            // legs whose worker went away while another leg waited
};

// From a request to a plan: admission, which endpoints are allowed, tokens, one or two bookings at once, and
// the answer. Asynchronous where a tokenizer or a queue makes it wait; otherwise the listener is told before
// plan() returns.
//
// Owner: the program; outlives its runs. Threads: any.
class RequestPlanner {
 public:
  struct Parts {
    Selectors selectors;
    WorkerDirectory* directory = nullptr;
    PlanLedger* ledger = nullptr;
    Tokenizer* tokenizer = nullptr;  // null: nothing is tokenized
    std::function<SteadyTime()> clock;
    std::function<std::uint64_t()> random;
    std::function<void(SteadyTime)> wake_by;  // maintain() the selectors by then
  };
  RequestPlanner(const PlanningConfig& config, Parts parts);

  std::shared_ptr<PlanningRun> plan(ReceivedRequest request, std::shared_ptr<PlanListener> listener);

  std::uint64_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  PlannerCounts counts() const;

 private:
  class Run;

  const PlanningConfig& config_;
  const Parts parts_;
  std::atomic<std::uint64_t> in_flight_{0};
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> refused_inflight_{0};
  std::atomic<std::uint64_t> tokenizer_failures_{0};
  std::atomic<std::uint64_t> decode_only_{0};
  std::atomic<std::uint64_t> rebooked_{0};
};

}  // namespace handoff::epp
