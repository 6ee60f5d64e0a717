#include "sidecar/transport.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <climits>

namespace handoff::sidecar {
namespace {

bool is_not_now(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

Transport::Transport(Socket socket)
    : executor_(socket.get_executor()), poller_(net::use_service<SocketPoller>(executor_.context())) {
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  if (!socket.is_open()) return;
  socket_ = socket.release(ignored);
  if (socket_ >= 0 && !poller_.add(socket_, *this)) close();
}

Transport::~Transport() {
  close();
}

IoResult Transport::try_read(std::span<char> buffer) {
  if (!readable_) return {IoStatus::would_block, 0};
  const auto size = ::recv(socket_, buffer.data(), buffer.size(), 0);
  if (size > 0) {
    // Less than there was room for is all there was; what comes later, or the end that was not told yet,
    // brings an edge.
    readable_ = hung_up_ || static_cast<std::size_t>(size) == buffer.size();
    return {IoStatus::ok, static_cast<std::size_t>(size)};
  }
  if (size == 0) return {IoStatus::closed, 0};
  if (!is_not_now(errno)) return {IoStatus::failed, 0};
  readable_ = errno == EINTR;
  return {IoStatus::would_block, 0};
}

IoResult Transport::written(ssize_t size, std::size_t wanted) {
  if (size >= 0) {
    writable_ = hung_up_ || static_cast<std::size_t>(size) == wanted;
    return {IoStatus::ok, static_cast<std::size_t>(size)};
  }
  if (!is_not_now(errno)) return {IoStatus::failed, 0};
  writable_ = errno == EINTR;
  return {IoStatus::would_block, 0};
}

IoResult Transport::try_write(std::span<const iovec> pieces) {
  if (!writable_) return {IoStatus::would_block, 0};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // the kernel does not write to it
  message.msg_iovlen = std::min<std::size_t>(pieces.size(), IOV_MAX);
  std::size_t wanted = 0;
  for (const auto& piece : pieces.first(message.msg_iovlen)) wanted += piece.iov_len;
  return written(::sendmsg(socket_, &message, MSG_NOSIGNAL), wanted);
}

IoResult Transport::try_write(const char* data, std::size_t size) {
  if (!writable_) return {IoStatus::would_block, 0};
  return written(::send(socket_, data, size, MSG_NOSIGNAL), size);
}

Awaitable<> Transport::wait(bool for_read, bool for_write) {
  waits_for_read_ = for_read;
  waits_for_write_ = for_write;
  return net::async_initiate<decltype(kUseAwaitable), void()>(
      [](Waiter waiter, Transport* self) {
        self->waiter_.emplace(std::move(waiter));
        self->poller_.begin_wait();
      },
      kUseAwaitable, this);
}

void Transport::cancel_waits() {
  if (!waiter_) return;
  net::post(executor_, std::move(*waiter_));
  waiter_.reset();
  poller_.end_wait();
}

void Transport::tell_when_readable() {
  if (telling_ || !is_open()) return;
  telling_ = true;
  poller_.begin_wait();
}

void Transport::stop_telling() {
  if (std::exchange(telling_, false)) poller_.end_wait();
}

void Transport::on_change() {
  if (telling_ && readable_) {
    stop_telling();
    if (!waiter_) return on_readable_();  // may destroy us
    on_readable_();
  }
  if (waiter_ && ((waits_for_read_ && readable_) || (waits_for_write_ && writable_))) {
    auto waiter = std::move(*waiter_);
    waiter_.reset();
    poller_.end_wait();
    std::move(waiter)();  // may destroy us
  }
}

void Transport::drop_waiter() {
  const auto waiter = std::exchange(waiter_, std::nullopt);  // owns the coroutine, which may own us
}

void Transport::close() {
  if (socket_ < 0) return;
  poller_.remove(socket_, *this);
  ::close(socket_);
  socket_ = -1;
  readable_ = writable_ = true;  // trying tells that it is closed
  stop_telling();
  cancel_waits();
}

void Transport::reset() {
  const linger at_once{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close();
}

void Transport::shutdown_send() {
  ::shutdown(socket_, SHUT_WR);
}

bool Transport::peer_has_closed() const {
  pollfd query{socket_, POLLRDHUP, 0};
  return ::poll(&query, 1, 0) > 0 && (query.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

std::size_t Transport::in_flight() const {
  int bytes = 0;
  return ::ioctl(socket_, SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

bool Transport::is_quiet() {
  char byte = 0;
  const bool quiet = ::recv(socket_, &byte, 1, MSG_PEEK) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  readable_ = !quiet;
  return quiet;
}

}  // namespace handoff::sidecar
