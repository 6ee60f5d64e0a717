// Sockets of the measuring tools: loopback only, errors end the tool with one line.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <string_view>
#include <utility>

namespace bench {

// CLOCK_MONOTONIC, so that two processes of one machine can compare their stamps.
std::uint64_t now_ns();

// Prints `error: <what>` with errno's text and exits 1. The tools have nobody to report to but their caller.
[[noreturn]] void fail(std::string_view what);

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Listener {
  Fd fd;
  std::uint16_t port;
};

// Port 0 takes a free one.
Listener listen_on_loopback(std::uint16_t port);

// The next waiting connection, non-blocking and without Nagle; empty when none waits.
Fd accept_next(const Fd& listener);

// Connects in blocking mode (immediate on loopback), then makes the socket non-blocking. Empty on failure.
Fd connect_to_loopback(std::uint16_t port);

void set_blocking(const Fd& socket, std::uint64_t receive_timeout_ms);

// Raises the soft limit of open files to the hard one.
void raise_fd_limit();

// A level-triggered epoll set whose entries carry a pointer of the caller.
class Poller {
 public:
  Poller();
  void add(int fd, std::uint32_t events, void* owner);
  void modify(int fd, std::uint32_t events, void* owner);
  // Waits at most timeout_ms (-1: for ever); an interrupted wait returns 0 events.
  int wait(epoll_event* events, int capacity, int timeout_ms);

 private:
  Fd fd_;
};

}  // namespace bench
