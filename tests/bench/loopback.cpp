#include "loopback.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace bench {
namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

void set_no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

std::uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

void fail(std::string_view what) {
  std::fprintf(stderr, "error: %.*s: %s\n", static_cast<int>(what.size()), what.data(), std::strerror(errno));
  std::exit(1);
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Listener listen_on_loopback(std::uint16_t port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) fail("socket");
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = loopback(port);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (listen(fd.get(), SOMAXCONN) != 0) fail("listen");
  socklen_t length = sizeof address;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  return {std::move(fd), ntohs(address.sin_port)};
}

Fd accept_next(const Fd& listener) {
  Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd) set_no_delay(fd.get());
  return fd;
}

Fd connect_to_loopback(std::uint16_t port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) fail("socket");
  sockaddr_in address = loopback(port);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return Fd();
  set_no_delay(fd.get());
  if (fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) fail("fcntl");
  return fd;
}

void set_blocking(const Fd& socket, std::uint64_t receive_timeout_ms) {
  if (fcntl(socket.get(), F_SETFL, 0) != 0) fail("fcntl");
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(receive_timeout_ms / 1000);
  limit.tv_usec = static_cast<suseconds_t>(receive_timeout_ms % 1000 * 1000);
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

void raise_fd_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Poller::Poller() : fd_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!fd_) fail("epoll_create1");
}

void Poller::add(int fd, std::uint32_t events, void* owner) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = owner;
  if (epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl add");
}

void Poller::modify(int fd, std::uint32_t events, void* owner) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = owner;
  if (epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0) fail("epoll_ctl mod");
}

int Poller::wait(epoll_event* events, int capacity, int timeout_ms) {
  const int count = epoll_wait(fd_.get(), events, capacity, timeout_ms);
  if (count < 0) {
    if (errno == EINTR) return 0;
    fail("epoll_wait");
  }
  return count;
}

}  // namespace bench
