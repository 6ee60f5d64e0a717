#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "epp/kv_index/kv_event_feed.hpp"

namespace handoff::epp {

// A descriptor of this process; closed with its owner.
class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int fd) : fd_(fd) {}
  ~OwnedDescriptor();
  OwnedDescriptor(const OwnedDescriptor&) = delete;
  OwnedDescriptor& operator=(const OwnedDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// A thread and its feeds. What it does costs as much as there are feeds with something to do, however many
// there are: descriptors wait in one epoll set, and feeds come and go without waiting for it.
//
// Owner: KvFeedPool. Threads: any but its own. Sockets are closed by the thread, or with it.
class FeedThread {
 public:
  using Feed = std::shared_ptr<KvEventFeed>;

  explicit FeedThread(KvFeedPool::Clock clock);
  ~FeedThread();
  FeedThread(const FeedThread&) = delete;
  FeedThread& operator=(const FeedThread&) = delete;

  // Throws std::system_error when its descriptors can't be watched.
  void add(Feed feed);
  // After it returns, the feed changes the index no more.
  void remove(const Feed& feed);
  std::size_t size() const;

 private:
  struct Change {
    Feed feed;
    bool arrives = false;
  };

  void push(Change change);
  void run();
  bool take_changes();
  bool process_ready();
  void wait();
  int longest_wait();
  void wake();

  const KvFeedPool::Clock clock_;
  const OwnedDescriptor epoll_;
  const OwnedDescriptor wake_up_;
  mutable std::mutex mutex_;
  std::vector<Change> changes_;
  std::size_t size_ = 0;
  bool stopping_ = false;

  // The thread's own.
  std::unordered_map<KvEventFeed*, Feed> feeds_;
  std::unordered_set<KvEventFeed*> ready_;  // have something to do
  std::unordered_set<KvEventFeed*> timed_;  // have a deadline
  std::thread thread_;                      // the last: it uses all of the above
};

}  // namespace handoff::epp
