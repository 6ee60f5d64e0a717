#include "sidecar/socket_poller.hpp"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>

namespace handoff::sidecar {
namespace {

int new_set() {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  if (set < 0) throw boost::system::system_error(errno, boost::system::system_category(), "epoll_create1");
  return set;
}

// Longer than a loop takes from one look at its sockets to the next, unless it is very busy.
constexpr milliseconds kCurrent{1};

}  // namespace

net::execution_context::id SocketPoller::id;

SocketPoller::SocketPoller(net::io_context& context)
    : net::execution_context::service(context), set_(context, new_set()) {}

void SocketPoller::shutdown() {
  while (!watches_.empty()) {
    auto& watch = watches_.front();
    watches_.pop_front();
    watch.drop_waiter();
  }
  error_code ignored;
  set_.close(ignored);
}

bool SocketPoller::add(int socket, Watch& watch) {
  epoll_event interest{};
  interest.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  interest.data.ptr = &watch;
  if (::epoll_ctl(set_.native_handle(), EPOLL_CTL_ADD, socket, &interest) != 0) return false;
  watches_.push_back(watch);
  return true;
}

void SocketPoller::remove(int socket, Watch& watch) {
  if (!watch.is_linked()) return;
  watches_.erase(watches_.iterator_to(watch));
  ::epoll_ctl(set_.native_handle(), EPOLL_CTL_DEL, socket, nullptr);
  for (auto& event : batch_) {
    if (event.data.ptr == &watch) event.data.ptr = nullptr;
  }
}

void SocketPoller::begin_wait() {
  ++waits_;
  if (!armed_ && batch_.empty()) arm();
}

void SocketPoller::end_wait() {
  if (--waits_ > 0 || !armed_) return;
  error_code ignored;  // armed until the handler has run, which may be under way with good news
  set_.cancel(ignored);
}

bool SocketPoller::is_current() const {
  return told_all_ && Clock::now() - told_at_ < kCurrent;
}

void SocketPoller::arm() {
  armed_ = true;
  set_.async_wait(net::posix::descriptor_base::wait_read, [this](error_code ec) {
    armed_ = false;
    if (!ec) {
      dispatch();
    } else if (ec == net::error::operation_aborted && waits_ > 0) {
      arm();  // ended by end_wait(), and somebody has begun to wait since
    }
  });
}

void SocketPoller::dispatch() {
  told_at_ = Clock::now();
  const int count = ::epoll_wait(set_.native_handle(), events_.data(), static_cast<int>(events_.size()), 0);
  batch_ = std::span(events_).first(static_cast<std::size_t>(std::max(count, 0)));
  told_all_ = count >= 0 && batch_.size() < events_.size();
  // First all of what is known, so that whoever acts on one socket knows of the others what came before.
  for (const auto& event : batch_) {
    auto& watch = *static_cast<Watch*>(event.data.ptr);
    const bool broken = (event.events & (EPOLLHUP | EPOLLERR)) != 0;
    if (broken || (event.events & EPOLLRDHUP) != 0) watch.hung_up_ = true;
    if (broken || (event.events & (EPOLLIN | EPOLLRDHUP)) != 0) watch.readable_ = true;
    if (broken || (event.events & EPOLLOUT) != 0) watch.writable_ = true;
  }
  for (const auto& event : batch_) {
    if (event.data.ptr != nullptr) static_cast<Watch*>(event.data.ptr)->on_change();
  }
  batch_ = {};
  if (waits_ > 0 && !armed_) arm();  // what did not fit into this batch is told at once
}

}  // namespace handoff::sidecar
