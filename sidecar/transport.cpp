#include "sidecar/transport.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <cerrno>
#include <climits>
#include <utility>

namespace handoff::sidecar {
namespace {

constexpr auto kTuple = net::as_tuple(kUseAwaitable);

IoResult to_result(ssize_t n) {
  if (n > 0) return {IoStatus::ok, static_cast<std::size_t>(n)};
  if (n == 0) return {IoStatus::closed, 0};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {IoStatus::would_block, 0};
  return {IoStatus::failed, 0};
}

}  // namespace

Transport::Transport(Socket socket) : socket_(std::move(socket)) {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
}

IoResult Transport::try_read(std::span<char> buffer) {
  return to_result(::recv(socket_.native_handle(), buffer.data(), buffer.size(), 0));
}

IoResult Transport::try_write(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // the kernel does not write to it
  message.msg_iovlen = std::min<std::size_t>(pieces.size(), IOV_MAX);
  return to_result(::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL));
}

IoResult Transport::try_write(const char* data, std::size_t size) {
  return to_result(::send(socket_.native_handle(), data, size, MSG_NOSIGNAL));
}

Awaitable<bool> Transport::wait_readable() {
  auto [ec] = co_await socket_.async_wait(tcp::socket::wait_read, kTuple);
  co_return !ec;
}

Awaitable<bool> Transport::wait_writable() {
  auto [ec] = co_await socket_.async_wait(tcp::socket::wait_write, kTuple);
  co_return !ec;
}

Awaitable<bool> Transport::wait_either() {
  auto group =
      net::experimental::make_parallel_group(socket_.async_wait(tcp::socket::wait_read, net::deferred),
                                             socket_.async_wait(tcp::socket::wait_write, net::deferred));
  auto [order, read_ec, write_ec] =
      co_await group.async_wait(net::experimental::wait_for_one(), kUseAwaitable);
  co_return order[0] == 0 ? !read_ec : !write_ec;
}

void Transport::cancel_waits() {
  error_code ignored;
  socket_.cancel(ignored);
}

void Transport::close() {
  error_code ignored;
  socket_.close(ignored);
}

void Transport::reset() {
  error_code ignored;
  socket_.set_option(net::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
}

void Transport::shutdown_send() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

bool Transport::peer_has_closed() const {
  auto& socket = const_cast<Socket&>(socket_);  // native_handle() is not const
  pollfd query{socket.native_handle(), POLLRDHUP, 0};
  return ::poll(&query, 1, 0) > 0 && (query.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool Transport::is_quiet() const {
  auto& socket = const_cast<Socket&>(socket_);
  char byte = 0;
  return ::recv(socket.native_handle(), &byte, 1, MSG_PEEK) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace handoff::sidecar
