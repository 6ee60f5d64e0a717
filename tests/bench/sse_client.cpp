// Opens N event streams, checks every byte of every event, and prints one JSON line: events, one-way delay,
// CPU time of watched processes. With --milliseconds it measures a window and leaves; with --complete 1 it
// reads every stream to its end. Prints `streaming` once every stream has delivered an event. Exits 3 on
// damaged streams.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "chat_request.hpp"
#include "http_reader.hpp"
#include "latencies.hpp"
#include "loopback.hpp"
#include "sse_event.hpp"
#include "usage_probe.hpp"

namespace {

using bench::Fd;
using bench::HttpReader;

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kSilenceLimit = 10'000 * kMillisecond;

struct Plan {
  std::size_t streams;
  std::uint64_t events;  // of each stream
  std::size_t event_bytes;
  bool complete;
  std::uint64_t warm_up_ns;
  std::uint64_t window_ns;
};

struct Stream {
  explicit Stream(std::size_t event_bytes) : checker(event_bytes) {}

  Fd fd;
  HttpReader reader{HttpReader::Role::responses};
  bench::SseChecker checker;
  bool over = false;
};

class SseClient {
 public:
  SseClient(bench::ChatRequest request, const Plan& plan, std::vector<int> watched)
      : request_(std::move(request)), plan_(plan), probe_(std::move(watched)), buffer_(256U * 1024U) {}

  void run() {
    for (std::size_t i = 0; i < plan_.streams; ++i) open_stream();
    open_ = streams_.size();
    last_event_ns_ = bench::now_ns();
    if (plan_.complete) open_window();  // everything counts
    epoll_event events[256];
    while (step(bench::now_ns())) {
      const int count = poller_.wait(events, 256, 20);
      for (int i = 0; i < count; ++i) read(*static_cast<Stream*>(events[i].data.ptr));
    }
    if (measuring_) close_window(bench::now_ns());
  }

  // The exit code.
  int print() {
    for (const Stream& stream : streams_) {
      const bool whole = stream.checker.ended() && stream.checker.events() == plan_.events;
      if (plan_.complete && !whole) ++incomplete_;
    }
    const double events = static_cast<double>(std::max<std::uint64_t>(events_, 1));
    std::printf(R"({"streams":%zu,"events":%llu,"seconds":%.3f,"damaged_events":%llu,"failed_streams":%llu,)"
                R"("incomplete_streams":%llu,"receives":%llu,%s,"cores":%s)",
                streams_.size(), static_cast<unsigned long long>(events_),
                static_cast<double>(measured_ns_) / 1e9, static_cast<unsigned long long>(damaged_),
                static_cast<unsigned long long>(failed_), static_cast<unsigned long long>(incomplete_),
                static_cast<unsigned long long>(receives_), delays_.json_members().c_str(),
                probe_.cores_json().c_str());
    if (probe_.watches()) {
      std::printf(R"(,"cpu_us":%.1f,"cpu_us_per_event":%.3f)", probe_.cpu_us(), probe_.cpu_us() / events);
    }
    std::printf("}\n");
    return damaged_ + failed_ + incomplete_ == 0 ? 0 : 3;
  }

 private:
  void open_stream() {
    Stream& stream = streams_.emplace_back(plan_.event_bytes);
    stream.fd = bench::connect_to_loopback(request_.port);
    if (!stream.fd) bench::fail("connect");
    // A request of a few hundred bytes always fits the empty socket buffer.
    const ssize_t sent = send(stream.fd.get(), request_.bytes.data(), request_.bytes.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(request_.bytes.size())) bench::fail("send");
    poller_.add(stream.fd.get(), EPOLLIN, &stream);
  }

  bool step(std::uint64_t now) {
    if (now - last_event_ns_ > kSilenceLimit) {
      std::fprintf(stderr, "error: no event for 10 s\n");
      std::exit(1);
    }
    if (!announced_ && started_ + failed_ == streams_.size()) {
      announced_ = true;
      std::printf("streaming\n");
      std::fflush(stdout);
      if (!measuring_) window_begin_ns_ = now + plan_.warm_up_ns;
    }
    if (announced_ && !measuring_ && now >= window_begin_ns_) {
      delays_.clear();
      events_ = receives_ = 0;
      open_window();
    }
    if (open_ == 0) return false;
    return plan_.complete || !measuring_ || now < window_begin_ns_ + plan_.window_ns;
  }

  void open_window() {
    measuring_ = true;
    probe_.begin();
    window_begin_ns_ = bench::now_ns();
  }

  void close_window(std::uint64_t now) {
    probe_.end();
    measured_ns_ = now - window_begin_ns_;
  }

  void read(Stream& stream) {
    if (stream.over) return;
    const ssize_t received = recv(stream.fd.get(), buffer_.data(), buffer_.size(), 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const std::uint64_t now = bench::now_ns();
    if (received <= 0) {
      end_stream(stream, received < 0 || !stream.reader.until_close());
      return;
    }
    ++receives_;
    std::string_view input(buffer_.data(), static_cast<std::size_t>(received));
    for (;;) {
      const HttpReader::Step step = stream.reader.next(input);
      if (step.kind == HttpReader::Kind::need_more) return;
      if (step.kind == HttpReader::Kind::body) take_events(stream, step.body, now);
      const bool refused = step.kind == HttpReader::Kind::head && stream.reader.status() != 200;
      if (step.kind == HttpReader::Kind::malformed || refused) {
        end_stream(stream, true);
        return;
      }
      if (step.kind == HttpReader::Kind::end) {
        end_stream(stream, !plan_.complete && !stream.checker.ended());
        return;
      }
    }
  }

  void take_events(Stream& stream, std::string_view body, std::uint64_t now) {
    for (;;) {
      const bench::SseChecker::Result result = stream.checker.next(body);
      if (!result.complete) return;
      last_event_ns_ = now;
      if (!result.intact) ++damaged_;
      if (result.is_end) continue;
      if (stream.checker.events() == 1) ++started_;
      ++events_;
      if (result.intact) delays_.add(now - result.stamp_ns);
    }
  }

  void end_stream(Stream& stream, bool failed) {
    stream.over = true;
    if (failed) ++failed_;
    if (stream.checker.events() == 0 && !failed) ++started_;  // an empty stream is a started one
    stream.fd = Fd();
    --open_;
  }

  bench::ChatRequest request_;
  Plan plan_;
  bench::UsageProbe probe_;
  bench::Poller poller_;
  std::deque<Stream> streams_;  // a deque keeps addresses
  std::vector<char> buffer_;
  bench::Latencies delays_;
  std::uint64_t open_ = 0;
  std::uint64_t started_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t receives_ = 0;
  std::uint64_t damaged_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t incomplete_ = 0;
  bool announced_ = false;
  bool measuring_ = false;
  std::uint64_t last_event_ns_ = 0;
  std::uint64_t window_begin_ns_ = 0;
  std::uint64_t measured_ns_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv,
                                   {BENCH_REQUEST_FLAGS, "--streams", "--events", "--event-bytes",
                                    "--complete", "--warm-up-ms", "--milliseconds", "--watch-pids"});
  const Plan plan{
      .streams = arguments.number("--streams", 1, 1, 10'000),
      .events = arguments.number("--events", 100, 0, 10'000'000),
      .event_bytes = arguments.number("--event-bytes", 180, 0, 65'536),
      .complete = arguments.number("--complete", 0, 0, 1) == 1,
      .warm_up_ns = arguments.number("--warm-up-ms", 500, 0, 60'000) * kMillisecond,
      .window_ns = arguments.number("--milliseconds", 5'000, 1, 600'000) * kMillisecond,
  };
  bench::raise_fd_limit();
  SseClient client(bench::make_chat_request(arguments, true), plan,
                   bench::parse_pids(arguments.text("--watch-pids", "")));
  client.run();
  return client.print();
}
