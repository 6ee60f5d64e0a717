// The engine behind every product under test: one thread, fixed answers, no JSON parsed. See README.md.
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "arguments.hpp"
#include "engine_answers.hpp"
#include "engine_counters.hpp"
#include "http_reader.hpp"
#include "loopback.hpp"
#include "request_marks.hpp"
#include "sse_event.hpp"
#include "stream_plan.hpp"

namespace {

using bench::Fd;
using bench::HttpReader;
using bench::StreamPlan;

constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";
constexpr std::size_t kMaxUnsentStream = 1U << 20U;

void append_chunk(std::string& out, std::string_view data) {
  char size[20];
  const int length = std::snprintf(size, sizeof size, "%zx\r\n", data.size());
  out.append(size, static_cast<std::size_t>(length)).append(data).append("\r\n");
}

struct Connection {
  explicit Connection(Fd socket) : fd(std::move(socket)) {}

  Fd fd;
  HttpReader reader{HttpReader::Role::requests};
  bench::RequestMarks marks;
  std::string unsent;
  bool waits_to_send = false;
  bool streaming = false;
  StreamPlan plan;
  std::uint64_t next_event = 0;
};

// All streams of one interval tick together from one timer.
struct TickGroup {
  Fd timer;
  std::vector<Connection*> members;
};

class FakeEngine {
 public:
  FakeEngine(bench::Listener listener, bool is_prefill)
      : is_prefill_(is_prefill), answers_(is_prefill), listener_(std::move(listener)), buffer_(256U * 1024U) {
    poller_.add(listener_.fd.get(), EPOLLIN, &listener_);
  }

  [[noreturn]] void run() {
    epoll_event events[256];
    for (;;) {
      const int count = poller_.wait(events, 256, -1);
      for (int i = 0; i < count; ++i) dispatch(events[i]);
      for (Connection* connection : over_) forget(connection);
      over_.clear();
    }
  }

 private:
  void dispatch(const epoll_event& event) {
    if (event.data.ptr == &listener_) {
      accept_waiting();
    } else if (const auto group = timers_.find(event.data.ptr); group != timers_.end()) {
      tick(*group->second);
    } else {
      auto* connection = static_cast<Connection*>(event.data.ptr);
      if (over_.contains(connection)) return;
      if ((event.events & EPOLLOUT) != 0) flush(*connection);
      if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read(*connection);
    }
  }

  void accept_waiting() {
    while (Fd client = bench::accept_next(listener_.fd)) {
      auto connection = std::make_unique<Connection>(std::move(client));
      poller_.add(connection->fd.get(), EPOLLIN, connection.get());
      ++counters_.connections;
      connections_.emplace(connection.get(), std::move(connection));
    }
  }

  void read(Connection& connection) {
    const ssize_t received = recv(connection.fd.get(), buffer_.data(), buffer_.size(), 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (received <= 0) {
      over_.insert(&connection);
      return;
    }
    std::string_view input(buffer_.data(), static_cast<std::size_t>(received));
    for (;;) {
      const HttpReader::Step step = connection.reader.next(input);
      if (step.kind == HttpReader::Kind::need_more) break;
      if (step.kind == HttpReader::Kind::head) connection.marks.reset();
      if (step.kind == HttpReader::Kind::body) connection.marks.feed(step.body);
      if (step.kind == HttpReader::Kind::end) answer(connection);
      if (step.kind == HttpReader::Kind::malformed) {
        over_.insert(&connection);
        return;
      }
    }
    if (!connection.waits_to_send) flush(connection);
  }

  void answer(Connection& connection) {
    const std::string_view head = connection.reader.head();
    const std::string_view line = head.substr(0, head.find("\r\n"));
    const std::size_t first = line.find(' ');
    const std::size_t second = line.find(' ', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos || connection.streaming) {
      over_.insert(&connection);  // no request line, or a request behind an unfinished stream
      return;
    }
    const std::string_view method = line.substr(0, first);
    const std::string_view target = line.substr(first + 1, second - first - 1);
    ++counters_.requests;
    if (method == "POST") {
      answer_post(connection, target, head.find("x-bench-transfer: push") != std::string_view::npos);
    } else if (target.starts_with("/sse")) {
      start_stream(connection, bench::parse_stream_plan(target));
    } else if (target == "/stats") {
      connection.unsent += bench::json_response("200 OK", counters_.json());
    } else if (target == "/health") {
      connection.unsent += answers_.empty();
    } else if (target == "/server_info") {
      connection.unsent += answers_.server_info();
    } else if (target == "/query") {
      connection.unsent += answers_.mooncake_ranks();
    } else {
      connection.unsent += answers_.not_found();
    }
  }

  void answer_post(Connection& connection, std::string_view target, bool pushes) {
    const bench::RequestMarks& marks = connection.marks;
    const bool is_paired = !marks.pairing_id().empty();
    if (is_paired) {
      ++counters_.paired;
      counters_.pairing_sum += std::hash<std::string_view>{}(marks.pairing_id());
    }
    if (marks.asks_for_context()) {
      ++counters_.handoffs_given;
      answers_.append_context_reply(connection.unsent, marks.pairing_id(), marks.body_bytes());
      return;
    }
    if (marks.asks_for_handoff()) {
      ++counters_.handoffs_given;
      const auto handoff = pushes ? answers_.push_handoff() : answers_.nixl_handoff();
      connection.unsent += is_paired ? answers_.primed() : handoff;  // paired: Mooncake
      return;
    }
    const bool is_bare = !marks.carries_handoff() && !marks.carries_context();
    const bool is_rendezvous = is_bare && is_paired;  // SGLang, offloading: both legs say the same
    const bool primes = is_bare && !is_paired && marks.asks_for_one_token();  // shared storage
    if (is_prefill_ && (is_rendezvous || primes)) {
      ++counters_.handoffs_given;
      connection.unsent += answers_.primed();
      return;
    }
    ++(is_bare && !is_rendezvous ? counters_.plain_answers : counters_.handoffs_taken);
    if (marks.asks_for_stream()) {
      start_stream(connection, bench::parse_stream_plan(target));
    } else {
      connection.unsent += answers_.completion();
    }
  }

  void start_stream(Connection& connection, const StreamPlan& plan) {
    ++counters_.streams;
    ++counters_.stream_sends;
    connection.unsent += kStreamHead;
    connection.plan = plan;
    connection.next_event = 0;
    connection.streaming = true;
    TickGroup& group = groups_[plan.interval_ms];
    if (group.members.empty()) arm(group, plan.interval_ms);
    group.members.push_back(&connection);
  }

  void arm(TickGroup& group, std::uint64_t interval_ms) {
    if (!group.timer) {
      group.timer = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
      if (!group.timer) bench::fail("timerfd_create");
      poller_.add(group.timer.get(), EPOLLIN, &group);
      timers_.emplace(&group, &group);
    }
    itimerspec every{};
    every.it_interval.tv_sec = static_cast<time_t>(interval_ms / 1000);
    every.it_interval.tv_nsec = static_cast<long>(interval_ms % 1000 * 1'000'000);
    every.it_value = every.it_interval;
    timerfd_settime(group.timer.get(), 0, &every, nullptr);
  }

  void tick(TickGroup& group) {
    std::uint64_t expirations = 0;
    if (::read(group.timer.get(), &expirations, sizeof expirations) != sizeof expirations) return;
    counters_.missed_ticks += expirations - 1;
    for (std::size_t i = 0; i < group.members.size();) {
      Connection& connection = *group.members[i];
      if (!over_.contains(&connection)) send_event(connection);
      if (connection.streaming) {
        ++i;
      } else {
        group.members[i] = group.members.back();
        group.members.pop_back();
      }
    }
    if (group.members.empty()) {
      const itimerspec off{};
      timerfd_settime(group.timer.get(), 0, &off, nullptr);
    }
  }

  void send_event(Connection& connection) {
    const std::uint64_t number = connection.next_event++;
    event_.clear();
    const bool last = number >= connection.plan.events;
    if (last) {
      event_ = bench::kSseEnd;
      connection.streaming = false;
    } else if (number != connection.plan.drop_at) {
      bench::append_sse_event(event_, number, bench::now_ns(), connection.plan.bytes);
      if (number == connection.plan.corrupt_at) event_[event_.size() - 5] = '#';
    }
    if (!event_.empty()) append_chunk(connection.unsent, event_);
    if (last) connection.unsent += "0\r\n\r\n";
    ++counters_.stream_sends;
    if (!connection.waits_to_send) flush(connection);
    if (connection.unsent.size() > kMaxUnsentStream) over_.insert(&connection);  // a reader that has stopped
  }

  void flush(Connection& connection) {
    if (!connection.unsent.empty()) {
      const ssize_t sent =
          send(connection.fd.get(), connection.unsent.data(), connection.unsent.size(), MSG_NOSIGNAL);
      if (sent > 0) connection.unsent.erase(0, static_cast<std::size_t>(sent));
      if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        over_.insert(&connection);
        return;
      }
    }
    const bool must_wait = !connection.unsent.empty();
    if (must_wait == connection.waits_to_send) return;
    connection.waits_to_send = must_wait;
    poller_.modify(connection.fd.get(), must_wait ? EPOLLIN | EPOLLOUT : EPOLLIN, &connection);
  }

  void forget(Connection* connection) {
    if (connection->streaming) {
      std::vector<Connection*>& members = groups_[connection->plan.interval_ms].members;
      std::erase(members, connection);
    }
    connections_.erase(connection);
  }

  const bool is_prefill_;
  const bench::EngineAnswers answers_;
  bench::Listener listener_;
  bench::Poller poller_;
  std::vector<char> buffer_;
  std::string event_;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::map<std::uint64_t, TickGroup> groups_;
  std::unordered_map<void*, TickGroup*> timers_;
  std::unordered_set<Connection*> over_;  // closed after the events at hand, which may still name them
  bench::EngineCounters counters_;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {"--port", "--role"});
  const auto port = static_cast<std::uint16_t>(arguments.number("--port", 0, 0, 65535));
  const std::string role = arguments.text("--role", "decode");
  if (role != "prefill" && role != "decode") {
    std::fprintf(stderr, "error: --role: must be prefill or decode\n");
    return 2;
  }
  bench::raise_fd_limit();
  bench::Listener listener = bench::listen_on_loopback(port);
  std::printf("listening port=%u\n", listener.port);
  std::fflush(stdout);
  FakeEngine(std::move(listener), role == "prefill").run();
}
