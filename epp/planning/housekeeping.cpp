#include "epp/planning/housekeeping.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace handoff::epp {
namespace {

constexpr std::chrono::seconds kInterval{1};
constexpr std::chrono::milliseconds kLookInterval{250};

SteadyTime now() {
  return std::chrono::steady_clock::now();
}

}  // namespace

Housekeeping::Housekeeping(std::vector<SelectionService*> services, PlanLedger& plans)
    : services_(std::move(services)),
      plans_(plans),
      next_maintenance_(now() + kInterval),
      thread_([this] { run(); }) {}

Housekeeping::~Housekeeping() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Housekeeping::release_prefill_at(SteadyTime when, std::weak_ptr<Plan> plan) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = releases_.empty() || when < releases_.top().when;
    releases_.push({when, std::move(plan)});
  }
  if (is_first) changed_.notify_one();
}

void Housekeeping::wake_by(SteadyTime when) {
  {
    const std::lock_guard lock(mutex_);
    if (when >= next_maintenance_) return;
    next_maintenance_ = when;
  }
  changed_.notify_one();
}

std::vector<std::weak_ptr<Plan>> Housekeeping::due_releases(SteadyTime at) {
  std::vector<std::weak_ptr<Plan>> due;
  while (!releases_.empty() && releases_.top().when <= at) {
    due.push_back(releases_.top().plan);
    releases_.pop();
  }
  return due;
}

bool Housekeeping::somebody_waits() const {
  return std::any_of(services_.begin(), services_.end(),
                     [](const SelectionService* service) { return service->stats().waiting > 0; });
}

void Housekeeping::run() {
  SteadyTime next_look = now() + kLookInterval;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    SteadyTime next = std::min(next_maintenance_, next_look);
    if (!releases_.empty()) next = std::min(next, releases_.top().when);
    changed_.wait_until(lock, next);
    const SteadyTime at = now();
    const auto due = due_releases(at);
    const bool maintain = at >= next_maintenance_;
    if (maintain) next_maintenance_ = at + kInterval;
    const bool look = at >= next_look;
    if (look) next_look = at + kLookInterval;
    lock.unlock();
    for (const auto& plan : due) {
      if (const auto live = plan.lock()) live->release_prefill();
    }
    if (look && somebody_waits()) plans_.look_after_waiting();
    std::optional<SteadyTime> sooner;
    if (maintain) {
      for (SelectionService* service : services_) {
        const auto waiter_due = service->maintain();
        if (waiter_due && (!sooner || *waiter_due < *sooner)) sooner = waiter_due;
      }
    }
    lock.lock();
    if (sooner) next_maintenance_ = std::min(next_maintenance_, *sooner);
  }
}

}  // namespace handoff::epp
