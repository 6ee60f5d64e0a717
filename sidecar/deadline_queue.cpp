#include "sidecar/deadline_queue.hpp"

#include <utility>

namespace handoff::sidecar {

Deadline::Deadline(DeadlineQueue& queue, std::function<void()> on_expiry)
    : queue_(queue), on_expiry_(std::move(on_expiry)) {}

Deadline::~Deadline() {
  queue_.dequeue(*this);
}

void Deadline::arm_at(Clock::time_point due) {
  due_ = due;
  if (is_linked()) {
    if (due >= queued_for_) return;
    queue_.dequeue(*this);
  }
  queue_.enqueue(*this, due);
}

void DeadlineQueue::enqueue(Deadline& deadline, Clock::time_point when) {
  deadline.queued_for_ = when;
  queue_.insert(deadline);
  set_timer();
}

void DeadlineQueue::dequeue(Deadline& deadline) {
  if (deadline.is_linked()) queue_.erase(queue_.iterator_to(deadline));
}

void DeadlineQueue::stop() {
  stopped_ = true;
  timer_.cancel();
}

void DeadlineQueue::set_timer() {
  if (queue_.empty() || stopped_) return;
  const auto first = queue_.begin()->queued_for_;
  if (first >= timer_at_) return;  // a timer that fires early finds nothing due and sets itself anew
  timer_at_ = first;
  timer_.expires_at(first);
  timer_.async_wait([this](error_code ec) {
    if (!ec) on_timer();
  });
}

void DeadlineQueue::on_timer() {
  timer_at_ = Clock::time_point::max();
  const auto now = Clock::now();
  while (!queue_.empty() && queue_.begin()->queued_for_ <= now) {
    auto& deadline = *queue_.begin();
    dequeue(deadline);
    if (deadline.due_ <= now) {
      deadline.due_ = Clock::time_point::max();
      deadline.on_expiry_();
    } else if (deadline.armed()) {
      enqueue(deadline, deadline.due_);
    }
  }
  set_timer();
}

}  // namespace handoff::sidecar
