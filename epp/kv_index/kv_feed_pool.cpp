#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "epp/kv_index/kv_event_feed.hpp"
#include "epp/kv_index/kv_event_feed_impl.hpp"

namespace handoff::epp {

namespace {

constexpr auto kLongestWait = std::chrono::milliseconds(1000);
constexpr auto kGatherTime = std::chrono::microseconds(50);

// Interrupts a poll from another thread.
class WakeUp {
 public:
  WakeUp() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~WakeUp() { close(fd_); }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  int fd() const { return fd_; }
  void raise() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));  // full is as good as raised
  }
  void lower() {
    std::uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t taken = read(fd_, &ignored, sizeof(ignored));
  }

 private:
  int fd_;
};

}  // namespace

// A thread and its feeds. Feeds are handed over and taken back through a list; the thread works on its own
// copy of it.
class FeedThread {
 public:
  using Feed = std::shared_ptr<KvEventFeed>;
  using Turn = KvEventFeed::Impl::Turn;
  using Process = std::function<Turn(KvEventFeed&)>;
  using PollItems = std::function<void(KvEventFeed&, std::vector<zmq::pollitem_t>&)>;
  using Deadline = std::function<std::optional<SteadyTime>(const KvEventFeed&)>;

  FeedThread(KvFeedPool::Clock clock, Process process, PollItems poll_items, Deadline deadline)
      : clock_(std::move(clock)),
        process_(std::move(process)),
        poll_items_(std::move(poll_items)),
        deadline_(std::move(deadline)),
        thread_([this] { run(); }) {}

  ~FeedThread() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_up_.raise();
    thread_.join();
  }
  FeedThread(const FeedThread&) = delete;
  FeedThread& operator=(const FeedThread&) = delete;

  void add(Feed feed) {
    change([&] { feeds_.push_back(std::move(feed)); });
  }
  void remove(const KvEventFeed* feed) {
    change([&] { std::erase_if(feeds_, [feed](const Feed& mine) { return mine.get() == feed; }); });
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return feeds_.size();
  }

 private:
  // Returns when the thread works with the changed list.
  template <typename Change>
  void change(Change&& change_list) {
    std::unique_lock lock(mutex_);
    change_list();
    const std::uint64_t wanted = ++version_;
    wake_up_.raise();
    changed_.wait(lock, [&] { return seen_version_ >= wanted; });
  }

  void run() {
    std::vector<Feed> feeds;
    std::vector<zmq::pollitem_t> items;
    bool busy = false;
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        if (seen_version_ != version_) {
          feeds = feeds_;
          seen_version_ = version_;
          busy = true;
        }
      }
      changed_.notify_all();
      if (!busy) wait(feeds, items);
      busy = false;
      bool found = false;
      for (const Feed& feed : feeds) {
        const Turn turn = process_(*feed);
        busy |= turn == Turn::more;
        found |= turn != Turn::nothing;
      }
      // Where events just came, more will. To let some gather costs less than to be woken for each of them:
      // asking all sockets takes several system calls. What comes after a silence is still taken at once.
      if (found && !busy) std::this_thread::sleep_for(kGatherTime);
    }
  }

  void wait(const std::vector<Feed>& feeds, std::vector<zmq::pollitem_t>& items) {
    items.clear();
    items.push_back({nullptr, wake_up_.fd(), ZMQ_POLLIN, 0});
    std::chrono::milliseconds longest = kLongestWait;
    const SteadyTime now = clock_();
    for (const Feed& feed : feeds) {
      poll_items_(*feed, items);
      if (const auto deadline = deadline_(*feed)) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - now);
        longest = std::clamp(left, std::chrono::milliseconds(0), longest);
      }
    }
    try {
      zmq::poll(items, longest);
    } catch (const zmq::error_t&) {
      // Interrupted by a signal; whatever else it was, the next turn shows it.
    }
    if ((items[0].revents & ZMQ_POLLIN) != 0) wake_up_.lower();
  }

  const KvFeedPool::Clock clock_;
  const Process process_;
  const PollItems poll_items_;
  const Deadline deadline_;
  WakeUp wake_up_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Feed> feeds_;
  std::uint64_t version_ = 0;
  std::uint64_t seen_version_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // the last: it uses all of the above
};

class KvFeedPool::Impl {
 public:
  Impl(BlockIndex& index, std::size_t threads, Clock clock) : index_(index) {
    // Three for each rank; by itself ZMQ stops at 1,023. Descriptors are the limit then.
    context_.set(zmq::ctxopt::max_sockets, context_.get(zmq::ctxopt::socket_limit));
    for (std::size_t i = 0; i < std::max<std::size_t>(threads, 1); ++i) {
      threads_.push_back(std::make_unique<FeedThread>(
          clock, [clock](KvEventFeed& feed) { return feed.impl_->process(clock); },
          [](KvEventFeed& feed, std::vector<zmq::pollitem_t>& items) { feed.impl_->add_poll_items(items); },
          [](const KvEventFeed& feed) { return feed.impl_->deadline(); }));
    }
  }

  ~Impl() {
    threads_.clear();
    for (auto& [rank, placed] : feeds_) placed.feed->impl_->close();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::shared_ptr<const KvEventFeed> add(KvFeedOptions options, std::string& error) {
    const WorkerRank rank = options.applier.rank;
    const std::string endpoint = options.events_endpoint;
    const std::lock_guard lock(mutex_);
    drop(rank);
    std::shared_ptr<KvEventFeed> feed;
    try {
      feed.reset(new KvEventFeed(std::make_unique<KvEventFeed::Impl>(context_, index_, std::move(options))));
    } catch (const zmq::error_t& failure) {
      error = "KV events endpoint '" + endpoint + "': " + failure.what();
      return nullptr;
    }
    const auto idlest = std::min_element(threads_.begin(), threads_.end(),
                                         [](const auto& a, const auto& b) { return a->size() < b->size(); });
    (*idlest)->add(feed);
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
    found->second.thread->remove(found->second.feed.get());
    found->second.feed->impl_->close();
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
