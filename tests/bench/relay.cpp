// The floor: one thread, one epoll set, bytes from one socket to the other, nothing understood.
// Each client connection has its own kept upstream connection.
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <unordered_set>
#include <vector>

#include "arguments.hpp"
#include "loopback.hpp"

namespace {

using bench::Fd;

class Link;

// One of the two sockets of a link.
struct End {
  Fd fd;
  Link* link = nullptr;
  std::string unsent;  // received from the other end, refused by this one's socket buffer
};

// A client connection and its upstream connection. Owned by Relay; dies when either end closes and what it
// had sent is delivered.
class Link {
 public:
  Link(Fd client, Fd upstream, bench::Poller& poller) : poller_(poller) {
    ends_[0].fd = std::move(client);
    ends_[1].fd = std::move(upstream);
    for (End& end : ends_) {
      end.link = this;
      poller_.add(end.fd.get(), EPOLLIN, &end);
    }
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // False when the link is over.
  bool on_event(End& end, std::uint32_t events, std::vector<char>& buffer) {
    End& other = &end == &ends_[0] ? ends_[1] : ends_[0];
    if ((events & EPOLLOUT) != 0 && !flush(end, other)) return false;
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) return forward(end, other, buffer);
    return true;
  }

 private:
  bool forward(End& from, End& to, std::vector<char>& buffer) {
    if (!to.unsent.empty()) return true;  // a hang-up report while reading is paused
    const ssize_t received = recv(from.fd.get(), buffer.data(), buffer.size(), 0);
    if (received < 0) return errno == EAGAIN || errno == EINTR;
    if (received == 0) return false;
    const auto size = static_cast<std::size_t>(received);
    const ssize_t sent = send(to.fd.get(), buffer.data(), size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    const std::size_t done = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    if (done < size) {
      to.unsent.assign(buffer.data() + done, size - done);
      watch(from, to);
      watch(to, from);
    }
    return true;
  }

  bool flush(End& to, End& from) {
    const ssize_t sent = send(to.fd.get(), to.unsent.data(), to.unsent.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    to.unsent.erase(0, static_cast<std::size_t>(sent));
    if (to.unsent.empty()) {
      watch(from, to);
      watch(to, from);
    }
    return true;
  }

  // An end is read only while the other one has taken everything so far.
  void watch(End& end, const End& other) {
    const std::uint32_t readable = other.unsent.empty() ? EPOLLIN : 0U;
    const std::uint32_t writable = end.unsent.empty() ? 0U : EPOLLOUT;
    poller_.modify(end.fd.get(), readable | writable, &end);
  }

  bench::Poller& poller_;
  End ends_[2];
};

class Relay {
 public:
  Relay(bench::Listener listener, std::uint16_t upstream_port)
      : listener_(std::move(listener)), upstream_port_(upstream_port) {
    poller_.add(listener_.fd.get(), EPOLLIN, nullptr);
  }

  [[noreturn]] void run() {
    std::vector<char> buffer(64U * 1024U);
    epoll_event events[256];
    std::unordered_set<Link*> over;
    for (;;) {
      const int count = poller_.wait(events, 256, -1);
      for (int i = 0; i < count; ++i) {
        if (events[i].data.ptr == nullptr) {
          accept_waiting();
          continue;
        }
        End& end = *static_cast<End*>(events[i].data.ptr);
        if (over.contains(end.link)) continue;
        if (!end.link->on_event(end, events[i].events, buffer)) over.insert(end.link);
      }
      for (Link* link : over) delete link;
      over.clear();
    }
  }

 private:
  void accept_waiting() {
    while (Fd client = bench::accept_next(listener_.fd)) {
      Fd upstream = bench::connect_to_loopback(upstream_port_);
      if (upstream) new Link(std::move(client), std::move(upstream), poller_);  // freed in run()
    }
  }

  bench::Listener listener_;
  std::uint16_t upstream_port_;
  bench::Poller poller_;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {"--port", "--upstream-port"});
  const auto port = static_cast<std::uint16_t>(arguments.number("--port", 0, 0, 65535));
  const auto upstream = static_cast<std::uint16_t>(arguments.number("--upstream-port", 0, 1, 65535));
  bench::raise_fd_limit();
  bench::Listener listener = bench::listen_on_loopback(port);
  std::printf("listening port=%u\n", listener.port);
  std::fflush(stdout);
  Relay(std::move(listener), upstream).run();
}
