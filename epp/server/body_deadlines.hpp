#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <boost/intrusive/list.hpp>
#include <chrono>

namespace handoff::epp {

// A call whose request body is still on its way. It leaves its list when it goes away.
class BodyWaiter
    : public boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
 public:
  // The time is up; the call no longer waits. It may go away in here.
  virtual void on_body_timeout() = 0;

  bool is_waiting() const { return is_linked(); }
  void stop_waiting() { unlink(); }

  std::chrono::steady_clock::time_point until;  // BodyDeadlines' only

 protected:
  ~BodyWaiter() = default;
};

// When the bodies of a queue's calls are due. All have the same patience, so the first to wait is the first
// to run out, and one alarm serves all: an alarm for each would cost as much as all else that a request takes
// from the queue.
//
// Owner: the server; outlives the queue's calls. The queue's thread only, but for stop(). Its address is the
// alarm's tag.
class BodyDeadlines {
 public:
  BodyDeadlines(grpc::CompletionQueue& queue, std::chrono::milliseconds patience)
      : queue_(queue), patience_(patience) {}

  // From now on; it must not be waiting already.
  void add(BodyWaiter& waiter);
  void on_alarm();
  // When no call is left: the queue can't shut down under an alarm.
  void stop() { alarm_.Cancel(); }

 private:
  using Clock = std::chrono::steady_clock;
  void arm(Clock::time_point now);

  grpc::CompletionQueue& queue_;
  const std::chrono::milliseconds patience_;
  boost::intrusive::list<BodyWaiter, boost::intrusive::constant_time_size<false>> waiting_;
  grpc::Alarm alarm_;
  bool armed_ = false;
};

}  // namespace handoff::epp
