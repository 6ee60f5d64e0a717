#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "epp/planning/plan_ledger.hpp"

namespace handoff::epp {

// A thread for what is due at some time: the selectors' maintenance, prefill bookings of answers that are not
// streamed, whose first byte comes too late to tell, and plans that wait in a queue, which nobody tells that
// a worker went away.
//
// Owner: the program; it stops before the selectors go. schedule() and wake_by() from any thread.
class Housekeeping {
 public:
  Housekeeping(std::vector<SelectionService*> services, PlanLedger& plans);
  ~Housekeeping();
  Housekeeping(const Housekeeping&) = delete;
  Housekeeping& operator=(const Housekeeping&) = delete;

  void release_prefill_at(SteadyTime when, std::weak_ptr<Plan> plan);
  // Somebody waits in a selector's queue no longer than that.
  void wake_by(SteadyTime when);

 private:
  struct Release {
    SteadyTime when;
    std::weak_ptr<Plan> plan;
    bool operator>(const Release& other) const { return when > other.when; }
  };
  void run();
  std::vector<std::weak_ptr<Plan>> due_releases(SteadyTime now);
  bool somebody_waits() const;

  const std::vector<SelectionService*> services_;
  PlanLedger& plans_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::priority_queue<Release, std::vector<Release>, std::greater<>> releases_;
  SteadyTime next_maintenance_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace handoff::epp
