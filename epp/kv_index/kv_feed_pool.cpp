#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "epp/kv_index/feed_thread.hpp"
#include "epp/kv_index/kv_event_feed.hpp"
#include "epp/kv_index/kv_event_feed_impl.hpp"

namespace handoff::epp {

class KvFeedPool::Impl {
 public:
  Impl(BlockIndex& index, std::size_t threads, Clock clock) : index_(index) {
    // Three for each rank; by itself ZMQ stops at 1,023. Descriptors are the limit then.
    context_.set(zmq::ctxopt::max_sockets, context_.get(zmq::ctxopt::socket_limit));
    for (std::size_t i = 0; i < std::max<std::size_t>(threads, 1); ++i) {
      threads_.push_back(std::make_unique<FeedThread>(clock));
    }
  }

  // The sockets, with the threads, before their context.
  ~Impl() { threads_.clear(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::shared_ptr<const KvEventFeed> add(KvFeedOptions options, std::string& error) {
    const WorkerRank rank = options.applier.rank;
    const std::string endpoint = options.events_endpoint;
    const std::lock_guard lock(mutex_);
    drop(rank);
    const auto idlest = std::min_element(threads_.begin(), threads_.end(),
                                         [](const auto& a, const auto& b) { return a->size() < b->size(); });
    std::shared_ptr<KvEventFeed> feed;
    try {
      feed.reset(new KvEventFeed(std::make_unique<KvEventFeed::Impl>(context_, index_, std::move(options))));
      (*idlest)->add(feed);
    } catch (const std::exception& failure) {  // ZMQ's or the system's
      if (feed != nullptr) feed->impl_->close();
      error = "KV events endpoint '" + endpoint + "': " + failure.what();
      return nullptr;
    }
    feeds_[rank] = {feed, idlest->get()};
    return feed;
  }

  bool remove(WorkerRank rank) {
    const std::lock_guard lock(mutex_);
    return drop(rank);
  }

  std::shared_ptr<const KvEventFeed> find(WorkerRank rank) const {
    const std::lock_guard lock(mutex_);
    const auto found = feeds_.find(rank);
    return found == feeds_.end() ? nullptr : found->second.feed;
  }

  std::string bound_endpoint(WorkerRank rank) const {
    const std::lock_guard lock(mutex_);
    const auto found = feeds_.find(rank);
    return found == feeds_.end() ? std::string() : found->second.feed->impl_->bound_endpoint();
  }

 private:
  struct Placed {
    std::shared_ptr<KvEventFeed> feed;
    FeedThread* thread = nullptr;
  };

  bool drop(WorkerRank rank) {
    const auto found = feeds_.find(rank);
    if (found == feeds_.end()) return false;
    found->second.thread->remove(found->second.feed);
    feeds_.erase(found);
    return true;
  }

  BlockIndex& index_;
  zmq::context_t context_;
  mutable std::mutex mutex_;
  std::map<WorkerRank, Placed> feeds_;
  std::vector<std::unique_ptr<FeedThread>> threads_;
};

KvFeedPool::KvFeedPool(BlockIndex& index, std::size_t threads, Clock clock)
    : impl_(std::make_unique<Impl>(index, threads, std::move(clock))) {}
KvFeedPool::~KvFeedPool() = default;

std::shared_ptr<const KvEventFeed> KvFeedPool::add(KvFeedOptions options, std::string& error) {
  return impl_->add(std::move(options), error);
}
bool KvFeedPool::remove(WorkerRank rank) {
  return impl_->remove(rank);
}
std::shared_ptr<const KvEventFeed> KvFeedPool::find(WorkerRank rank) const {
  return impl_->find(rank);
}
std::string KvFeedPool::bound_endpoint(WorkerRank rank) const {
  return impl_->bound_endpoint(rank);
}

}  // namespace handoff::epp
