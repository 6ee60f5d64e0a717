#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <chrono>
#include <list>

namespace handoff::epp {

// A call whose request body is still on its way.
class BodyWaiter {
 public:
  // The time is up; the call no longer waits. It may go away in here.
  virtual void on_body_timeout() = 0;

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
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    BodyWaiter* waiter;
    Clock::time_point until;
  };
  using Place = std::list<Waiting>::iterator;

  BodyDeadlines(grpc::CompletionQueue& queue, std::chrono::milliseconds patience)
      : queue_(queue), patience_(patience) {}

  Place add(BodyWaiter& waiter);
  void remove(Place place) { waiting_.erase(place); }
  void on_alarm();
  // When no call is left: the queue can't shut down under an alarm.
  void stop() { alarm_.Cancel(); }

 private:
  void arm();

  grpc::CompletionQueue& queue_;
  const std::chrono::milliseconds patience_;
  std::list<Waiting> waiting_;
  grpc::Alarm alarm_;
  bool armed_ = false;
};

}  // namespace handoff::epp
