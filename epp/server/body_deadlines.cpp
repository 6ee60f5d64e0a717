#include "epp/server/body_deadlines.hpp"

namespace handoff::epp {

void BodyDeadlines::add(BodyWaiter& waiter) {
  const auto now = Clock::now();
  waiter.until = now + patience_;
  waiting_.push_back(waiter);
  arm(now);
}

void BodyDeadlines::on_alarm() {
  armed_ = false;
  const auto now = Clock::now();
  while (!waiting_.empty() && waiting_.front().until <= now) {
    BodyWaiter& late = waiting_.front();
    waiting_.pop_front();
    late.on_body_timeout();
  }
  arm(now);
}

// An alarm that is early, because the call it was set for no longer waits, sets the next one.
void BodyDeadlines::arm(Clock::time_point now) {
  if (armed_ || waiting_.empty()) return;
  armed_ = true;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(waiting_.front().until - now);
  alarm_.Set(&queue_,
             gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(left.count(), GPR_TIMESPAN)),
             this);
}

}  // namespace handoff::epp
