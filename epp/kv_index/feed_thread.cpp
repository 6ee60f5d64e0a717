#include "epp/kv_index/feed_thread.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "epp/kv_index/kv_event_feed_impl.hpp"

namespace handoff::epp {
namespace {

constexpr auto kLongestWait = std::chrono::milliseconds(1000);
constexpr auto kGatherTime = std::chrono::microseconds(50);
constexpr std::size_t kEventsPerWait = 256;

int require(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

}  // namespace

OwnedDescriptor::~OwnedDescriptor() {
  close(fd_);
}

FeedThread::FeedThread(KvFeedPool::Clock clock)
    : clock_(std::move(clock)),
      epoll_(require(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_up_(require(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  require(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_up_.get(), &event), "epoll_ctl");
  thread_ = std::thread([this] { run(); });
}

FeedThread::~FeedThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
  for (const Change& change : changes_) change.feed->impl_->close();
  for (auto& [key, feed] : feeds_) feed->impl_->close();
}

void FeedThread::add(Feed feed) {
  feed->impl_->watch_with(epoll_.get(), feed.get());
  push({std::move(feed), true});
}

void FeedThread::remove(const Feed& feed) {
  feed->impl_->silence();
  push({feed, false});
}

std::size_t FeedThread::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

void FeedThread::push(Change change) {
  {
    const std::lock_guard lock(mutex_);
    change.arrives ? ++size_ : --size_;
    changes_.push_back(std::move(change));
    if (changes_.size() > 1) return;  // it is on its way
  }
  wake();
}

void FeedThread::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_up_.get(), &one, sizeof(one));  // full is as good
}

void FeedThread::run() {
  while (take_changes()) {
    wait();
    const bool found = process_ready();
    const bool busy = !ready_.empty();
    // Where events just came, more will. To let some gather costs less than to be woken for each of them.
    // What comes after a silence is still taken at once.
    if (found && !busy) std::this_thread::sleep_for(kGatherTime);
  }
}

// False: it is to stop.
bool FeedThread::take_changes() {
  std::vector<Change> changes;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    changes.swap(changes_);
  }
  for (Change& change : changes) {
    KvEventFeed* const feed = change.feed.get();
    if (change.arrives) {
      ready_.insert(feed);  // what came before somebody looked is not told by its descriptors
      feeds_.emplace(feed, std::move(change.feed));
    } else {
      ready_.erase(feed);
      timed_.erase(feed);
      feed->impl_->close();
      feeds_.erase(feed);
    }
  }
  return true;
}

// Whether anything was found.
bool FeedThread::process_ready() {
  bool found = false;
  for (auto it = ready_.begin(); it != ready_.end();) {
    KvEventFeed* const feed = *it;
    using Turn = KvEventFeed::Impl::Turn;
    const Turn turn = feed->impl_->process(clock_);
    found |= turn != Turn::nothing;
    if (feed->impl_->deadline()) {
      timed_.insert(feed);
    } else {
      timed_.erase(feed);
    }
    it = turn == Turn::more ? std::next(it) : ready_.erase(it);
  }
  return found;
}

void FeedThread::wait() {
  std::array<epoll_event, kEventsPerWait> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), longest_wait());
  // Interrupted by a signal there is nothing; the next turn shows what it was.
  for (std::size_t i = 0; std::cmp_less(i, count); ++i) {
    if (auto* const feed = static_cast<KvEventFeed*>(events[i].data.ptr)) {
      if (feeds_.contains(feed)) ready_.insert(feed);  // it may not have been taken over yet
      continue;
    }
    std::uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t taken = read(wake_up_.get(), &ignored, sizeof(ignored));
  }
}

// In milliseconds; zero when there is something to do, as for feeds whose time has come.
int FeedThread::longest_wait() {
  if (!ready_.empty()) return 0;
  std::chrono::milliseconds longest = kLongestWait;
  if (timed_.empty()) return static_cast<int>(longest.count());
  const SteadyTime now = clock_();
  for (KvEventFeed* const feed : timed_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*feed->impl_->deadline() - now);
    longest = std::clamp(left, std::chrono::milliseconds(0), longest);
    if (left.count() <= 0) ready_.insert(feed);
  }
  return static_cast<int>(longest.count());
}

}  // namespace handoff::epp
