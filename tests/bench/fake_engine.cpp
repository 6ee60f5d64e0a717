// The engine behind every product under test: one thread, fixed answers, no JSON parsed. See README.md.
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "arguments.hpp"
#include "http_reader.hpp"
#include "loopback.hpp"
#include "request_marks.hpp"
#include "sse_event.hpp"

namespace {

using bench::Fd;
using bench::HttpReader;

constexpr std::string_view kAnswer =
    R"({"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,)"
    R"("message":{"role":"assistant","content":"answer"},"finish_reason":"stop"}],)"
    R"("usage":{"prompt_tokens":8,"total_tokens":9}})";
constexpr std::string_view kHandoff =
    R"({"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},)"
    R"("finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,)"
    R"("remote_block_ids":[[1,2,3]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1",)"
    R"("remote_port":5600,"tp_size":1,"remote_num_tokens":37,"remote_blocks_expiry_time":null,)"
    R"("transfer_mode":"pull"}})";
constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";
constexpr std::size_t kMaxUnsentStream = 1U << 20U;

std::string json_response(std::string_view status, std::string_view body) {
  std::string out = "HTTP/1.1 ";
  out.append(status).append("\r\nContent-Type: application/json\r\nContent-Length: ");
  out.append(std::to_string(body.size())).append("\r\n\r\n").append(body);
  return out;
}

void append_chunk(std::string& out, std::string_view data) {
  char size[20];
  const int length = std::snprintf(size, sizeof size, "%zx\r\n", data.size());
  out.append(size, static_cast<std::size_t>(length)).append(data).append("\r\n");
}

// Number of `name=` in a query; the fallback where it is absent or odd.
std::uint64_t query_number(std::string_view target, std::string_view name, std::uint64_t fallback) {
  const std::size_t mark = target.find('?');
  if (mark == std::string_view::npos) return fallback;
  std::string_view query = target.substr(mark + 1);
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=') {
      std::uint64_t value = fallback;
      std::from_chars(pair.data() + name.size() + 1, pair.data() + pair.size(), value);
      return value;
    }
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
  }
  return fallback;
}

struct StreamPlan {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  std::uint64_t events = 0;
  std::uint64_t interval_ms = 20;
  std::size_t bytes = 180;
  std::uint64_t corrupt_at = kNever;  // faults for testing the client
  std::uint64_t drop_at = kNever;
};

StreamPlan parse_stream_plan(std::string_view target) {
  StreamPlan plan;
  plan.events = std::min<std::uint64_t>(query_number(target, "events", 10), 10'000'000);
  plan.interval_ms = std::clamp<std::uint64_t>(query_number(target, "interval_ms", 20), 1, 60'000);
  plan.bytes = static_cast<std::size_t>(std::min<std::uint64_t>(query_number(target, "bytes", 180), 65'536));
  plan.corrupt_at = query_number(target, "corrupt", StreamPlan::kNever);
  plan.drop_at = query_number(target, "drop", StreamPlan::kNever);
  return plan;
}

struct Counters {
  std::uint64_t requests = 0;
  std::uint64_t handoffs_given = 0;
  std::uint64_t handoffs_taken = 0;
  std::uint64_t streams = 0;
  std::uint64_t stream_sends = 0;
  std::uint64_t missed_ticks = 0;
  std::uint64_t connections = 0;

  std::string json() const {
    const auto member = [](std::string_view name, std::uint64_t value) {
      return '"' + std::string(name) + "\":" + std::to_string(value);
    };
    return '{' + member("requests", requests) + ',' + member("handoffs_given", handoffs_given) + ',' +
           member("handoffs_taken", handoffs_taken) + ',' + member("streams", streams) + ',' +
           member("stream_sends", stream_sends) + ',' + member("missed_ticks", missed_ticks) + ',' +
           member("connections", connections) + '}';
  }
};

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
  explicit FakeEngine(bench::Listener listener) : listener_(std::move(listener)), buffer_(256U * 1024U) {
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
      answer_post(connection, target);
    } else if (target.starts_with("/sse")) {
      start_stream(connection, parse_stream_plan(target));
    } else if (target == "/stats") {
      connection.unsent += json_response("200 OK", counters_.json());
    } else if (target == "/health") {
      connection.unsent += json_response("200 OK", "{}");
    } else {
      connection.unsent += json_response("404 Not Found", "{}");
    }
  }

  void answer_post(Connection& connection, std::string_view target) {
    if (connection.marks.asks_for_handoff()) {
      ++counters_.handoffs_given;
      connection.unsent += handoff_;
      return;
    }
    if (connection.marks.carries_handoff()) ++counters_.handoffs_taken;
    if (connection.marks.asks_for_stream()) {
      start_stream(connection, parse_stream_plan(target));
    } else {
      connection.unsent += answer_;
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

  const std::string answer_ = json_response("200 OK", kAnswer);
  const std::string handoff_ = json_response("200 OK", kHandoff);
  bench::Listener listener_;
  bench::Poller poller_;
  std::vector<char> buffer_;
  std::string event_;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::map<std::uint64_t, TickGroup> groups_;
  std::unordered_map<void*, TickGroup*> timers_;
  std::unordered_set<Connection*> over_;  // closed after the events at hand, which may still name them
  Counters counters_;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {"--port"});
  const auto port = static_cast<std::uint16_t>(arguments.number("--port", 0, 0, 65535));
  bench::raise_fd_limit();
  bench::Listener listener = bench::listen_on_loopback(port);
  std::printf("listening port=%u\n", listener.port);
  std::fflush(stdout);
  FakeEngine(std::move(listener)).run();
}
