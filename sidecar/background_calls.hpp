// Calls to engines that nobody waits for: releases of handoffs, aborts.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "sidecar/counters.hpp"
#include "sidecar/upstream_leg.hpp"

namespace handoff::sidecar {

/// The background calls of one loop. Each is sent once, read to its end and dropped; its result is counted
/// under its name. Bounded in time by each call's deadline and in number; what comes on top is counted as
/// dropped.
class BackgroundCalls {
 public:
  BackgroundCalls(LegContext& legs, Counters& counters);
  ~BackgroundCalls();

  struct Call {
    std::string name;
    EngineAddress engine;
    std::string head;
    std::string body;
    milliseconds deadline{5000};
  };
  void start(Call call);
  std::size_t running() const { return running_.size(); }
  /// Ends all of them soon, and lets none begin any more: the loop's deadlines are about to stop.
  void cancel();

 private:
  struct Running;
  Awaitable<> run(Running& running);

  LegContext& legs_;
  Counters& counters_;
  std::set<std::unique_ptr<Running>> running_;
  bool cancelled_ = false;
};

}  // namespace handoff::sidecar
