#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace handoff::telemetry {

/// A pipe whose reader takes nothing until asked: a stalled log collector.
class TestPipe {
 public:
  /// Holds about `bytes` before it is full; the kernel's least is one page.
  explicit TestPipe(int bytes = 65536) {
    if (::pipe(ends_) != 0) std::abort();
    ::fcntl(ends_[1], F_SETPIPE_SZ, bytes);
  }
  ~TestPipe() {
    close_reader();
    ::close(ends_[1]);
  }
  TestPipe(const TestPipe&) = delete;
  TestPipe& operator=(const TestPipe&) = delete;

  int writer() const { return ends_[1]; }

  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }

  /// What is in the pipe now, after waiting up to `wait_ms` for the first byte.
  std::string take(int wait_ms = 0) {
    std::string text;
    pollfd ready{ends_[0], POLLIN, 0};
    char buffer[4096];
    while (::poll(&ready, 1, text.empty() ? wait_ms : 0) == 1) {
      const auto got = ::read(ends_[0], buffer, sizeof(buffer));
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  int ends_[2] = {-1, -1};
};

}  // namespace handoff::telemetry
