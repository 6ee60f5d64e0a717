// Deadlines of one loop behind a single timer.
#pragma once

#include <boost/intrusive/set.hpp>
#include <functional>

#include "sidecar/net.hpp"

namespace handoff::sidecar {

class DeadlineQueue;

/// A deadline that its owner embeds, arms and disarms. Expiry calls the function given at construction, once
/// per arm().
///
/// Lives on one loop, is not movable, and unlinks itself when destroyed. Moving a deadline later or disarming
/// it costs a store: it stays queued under its earlier time and is looked at again when that comes. That is
/// the common case by far, since almost every read time-out is re-armed before it fires.
class Deadline : public boost::intrusive::set_base_hook<> {
 public:
  Deadline(DeadlineQueue& queue, std::function<void()> on_expiry);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  void arm(milliseconds from_now) { arm_at(Clock::now() + from_now); }
  void arm_at(Clock::time_point due);
  void disarm() { due_ = Clock::time_point::max(); }
  bool armed() const { return due_ != Clock::time_point::max(); }
  DeadlineQueue& queue() { return queue_; }

  bool operator<(const Deadline& other) const { return queued_for_ < other.queued_for_; }

 private:
  friend class DeadlineQueue;
  DeadlineQueue& queue_;
  std::function<void()> on_expiry_;
  Clock::time_point due_ = Clock::time_point::max();
  Clock::time_point queued_for_{};
};

/// All armed deadlines of a loop, in order. Owned by the loop, used on its thread only.
class DeadlineQueue {
 public:
  explicit DeadlineQueue(net::io_context& context) : timer_(context) {}

  /// No deadline expires any more: the loop is ending, and a pending timer would keep it.
  void stop();

 private:
  friend class Deadline;
  void enqueue(Deadline& deadline, Clock::time_point when);
  void dequeue(Deadline& deadline);
  void set_timer();
  void on_timer();

  SteadyTimer timer_;
  boost::intrusive::multiset<Deadline> queue_;
  Clock::time_point timer_at_ = Clock::time_point::max();
  bool stopped_ = false;
};

}  // namespace handoff::sidecar
