// Sends one request over and over on N kept connections, closed loop (default) or open loop (--rate), and
// prints one JSON line: rate, latency percentiles, CPU time of watched processes.
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "chat_request.hpp"
#include "http_reader.hpp"
#include "latencies.hpp"
#include "loopback.hpp"
#include "usage_probe.hpp"

namespace {

using bench::Fd;
using bench::HttpReader;

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kSilenceLimit = 10 * kSecond;
constexpr std::uint64_t kMaxBacklog = 1'000'000;
constexpr std::uint64_t kMaxFailures = 10'000;

struct Plan {
  std::size_t connections;
  std::uint64_t warm_up_ns;
  std::uint64_t window_ns;
  std::uint64_t request_limit;  // 0: run for the window
  double rate;                  // 0: closed loop
};

// Send times of the open loop: exponential gaps from a fixed seed, so every product meets the same arrivals.
class Schedule {
 public:
  Schedule(double rate, std::uint64_t start_ns) : rate_(rate), due_ns_(static_cast<double>(start_ns)) {}

  std::uint64_t due_ns() const { return static_cast<std::uint64_t>(due_ns_); }
  void advance() { due_ns_ += -std::log(1.0 - uniform_(random_)) / rate_ * 1e9; }

 private:
  double rate_;
  double due_ns_;
  std::mt19937_64 random_{20240229};
  std::uniform_real_distribution<double> uniform_{0.0, 1.0};
};

struct Client {
  Fd fd;
  HttpReader reader{HttpReader::Role::responses};
  std::size_t unsent = 0;  // bytes of the request at hand
  bool busy = false;
  std::uint64_t started_ns = 0;  // of an open loop: when it was due
};

struct Counts {
  std::uint64_t completed = 0;  // in the window
  std::uint64_t issued = 0;
  std::uint64_t non_2xx = 0;
  std::uint64_t broken = 0;  // the connection ended with an answer owed
  std::uint64_t reconnects = 0;
  std::uint64_t unfinished = 0;
  std::uint64_t max_backlog = 0;
};

class LoadGenerator {
 public:
  LoadGenerator(bench::ChatRequest request, const Plan& plan, std::vector<int> watched)
      : request_(std::move(request)),
        plan_(plan),
        probe_(std::move(watched)),
        clients_(plan.connections),
        buffer_(256U * 1024U) {}

  void run() {
    for (Client& client : clients_) connect(client);
    const std::uint64_t start = bench::now_ns();
    last_answer_ns_ = start;
    window_begin_ns_ = start + plan_.warm_up_ns;
    window_end_ns_ = window_begin_ns_ + plan_.window_ns;
    if (plan_.rate > 0) {
      open_timer(start);
    } else {
      for (Client& client : clients_) issue(client, bench::now_ns());
    }
    epoll_event events[256];
    while (step(bench::now_ns())) {
      const int count = poller_.wait(events, 256, 50);
      for (int i = 0; i < count; ++i) {
        if (events[i].data.ptr == this) {
          on_timer();
        } else {
          on_event(*static_cast<Client*>(events[i].data.ptr), events[i].events);
        }
      }
    }
    if (phase_ == Phase::window) close_window(bench::now_ns());
    counts_.unfinished = backlog_.size() + busy_count();
  }

  void print() {
    const double seconds = static_cast<double>(measured_ns_) / 1e9;
    const double requests = static_cast<double>(std::max<std::uint64_t>(counts_.completed, 1));
    std::printf(R"({"requests":%llu,"seconds":%.3f,"req_per_s":%.1f,"non_2xx":%llu,"broken":%llu,)"
                R"("reconnects":%llu,"unfinished":%llu,"max_backlog":%llu,%s,"cores":%s)",
                static_cast<unsigned long long>(counts_.completed), seconds,
                static_cast<double>(counts_.completed) / std::max(seconds, 1e-9),
                static_cast<unsigned long long>(counts_.non_2xx),
                static_cast<unsigned long long>(counts_.broken),
                static_cast<unsigned long long>(counts_.reconnects),
                static_cast<unsigned long long>(counts_.unfinished),
                static_cast<unsigned long long>(counts_.max_backlog), latencies_.json_members().c_str(),
                probe_.cores_json().c_str());
    if (probe_.watches()) {
      std::printf(R"(,"cpu_us":%.1f,"cpu_us_per_request":%.3f)", probe_.cpu_us(), probe_.cpu_us() / requests);
    }
    std::printf("}\n");
  }

 private:
  enum class Phase { warm_up, window, drain };

  // Moves between the phases; false at the end.
  bool step(std::uint64_t now) {
    if (now - last_answer_ns_ > kSilenceLimit) {
      std::fprintf(stderr, "error: no answer for 10 s\n");
      std::exit(1);
    }
    if (phase_ == Phase::warm_up && now >= window_begin_ns_) {
      phase_ = Phase::window;
      latencies_.clear();
      counts_.completed = 0;
      probe_.begin();
      window_begin_ns_ = bench::now_ns();
    }
    if (plan_.request_limit > 0) return done_ < plan_.request_limit;
    if (phase_ == Phase::window && now >= window_end_ns_) close_window(now);
    if (phase_ != Phase::drain) return true;
    // The open loop waits for what was sent: dropping the slowest answers would hide the tail.
    const bool owed = plan_.rate > 0 && (!backlog_.empty() || busy_count() > 0);
    return owed && now < window_end_ns_ + 5 * kSecond;
  }

  void close_window(std::uint64_t now) {
    probe_.end();
    measured_ns_ = now - window_begin_ns_;
    phase_ = Phase::drain;
  }

  void connect(Client& client) {
    client.fd = bench::connect_to_loopback(request_.port);
    if (!client.fd) bench::fail("connect");
    client.reader = HttpReader(HttpReader::Role::responses);
    client.busy = false;
    client.unsent = 0;
    poller_.add(client.fd.get(), EPOLLIN, &client);
  }

  void issue(Client& client, std::uint64_t started_ns) {
    if (plan_.request_limit > 0 && counts_.issued >= plan_.request_limit) return;
    ++counts_.issued;
    client.busy = true;
    client.started_ns = started_ns;
    client.unsent = request_.bytes.size();
    send_rest(client, false);
  }

  void send_rest(Client& client, bool was_waiting) {
    const char* rest = request_.bytes.data() + (request_.bytes.size() - client.unsent);
    const ssize_t sent = send(client.fd.get(), rest, client.unsent, MSG_NOSIGNAL);
    if (sent > 0) client.unsent -= static_cast<std::size_t>(sent);
    // An error shows again when reading, which counts it.
    const bool must_wait = client.unsent > 0;
    if (must_wait != was_waiting) {
      poller_.modify(client.fd.get(), must_wait ? EPOLLIN | EPOLLOUT : EPOLLIN, &client);
    }
  }

  void on_event(Client& client, std::uint32_t events) {
    if ((events & EPOLLOUT) != 0 && client.unsent > 0) send_rest(client, true);
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
    const ssize_t received = recv(client.fd.get(), buffer_.data(), buffer_.size(), 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (received <= 0) {
      if (received == 0 && client.reader.until_close() && client.busy) finish(client, false);
      replace(client);
      return;
    }
    std::string_view input(buffer_.data(), static_cast<std::size_t>(received));
    for (;;) {
      const HttpReader::Step step = client.reader.next(input);
      if (step.kind == HttpReader::Kind::need_more) return;
      if (step.kind == HttpReader::Kind::malformed) {
        replace(client);
        return;
      }
      if (step.kind != HttpReader::Kind::end || client.reader.status() < 200) continue;
      const bool kept = client.reader.keeps_alive();
      finish(client, kept);
      if (!kept) {
        replace(client);
        return;
      }
    }
  }

  // Notes the answer and, where the connection lives on, gives the client its next request.
  void finish(Client& client, bool kept) {
    const std::uint64_t now = bench::now_ns();
    last_answer_ns_ = now;
    ++done_;
    client.busy = false;
    const bool counts = plan_.rate > 0 ? client.started_ns >= window_begin_ns_ : phase_ == Phase::window;
    if (client.reader.status() / 100 != 2) ++counts_.non_2xx;
    if (phase_ != Phase::warm_up && counts) {
      latencies_.add(now - client.started_ns);
      if (phase_ == Phase::window) ++counts_.completed;
    }
    if (kept) take_next(client, now);
  }

  void take_next(Client& client, std::uint64_t now) {
    if (plan_.rate == 0) {
      if (phase_ != Phase::drain) issue(client, now);
    } else if (!backlog_.empty()) {
      const std::uint64_t due = backlog_.front();
      backlog_.pop_front();
      issue(client, due);
    } else {
      idle_.push_back(&client);
    }
  }

  void replace(Client& client) {
    ++counts_.reconnects;
    if (client.busy) {
      ++counts_.broken;
      ++done_;
    }
    if (counts_.broken + counts_.reconnects > kMaxFailures) {
      std::fprintf(stderr, "error: more than %llu lost connections\n",
                   static_cast<unsigned long long>(kMaxFailures));
      std::exit(1);
    }
    const bool was_idle = plan_.rate > 0 && std::find(idle_.begin(), idle_.end(), &client) != idle_.end();
    connect(client);
    if (!was_idle) take_next(client, bench::now_ns());
  }

  void open_timer(std::uint64_t start) {
    for (Client& client : clients_) idle_.push_back(&client);
    schedule_ = std::make_unique<Schedule>(plan_.rate, start);
    timer_ = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!timer_) bench::fail("timerfd_create");
    poller_.add(timer_.get(), EPOLLIN, this);
    arm_timer();
  }

  void arm_timer() {
    itimerspec at{};
    at.it_value.tv_sec = static_cast<time_t>(schedule_->due_ns() / kSecond);
    at.it_value.tv_nsec = static_cast<long>(schedule_->due_ns() % kSecond);
    timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
  }

  void on_timer() {
    std::uint64_t expirations = 0;
    [[maybe_unused]] const ssize_t ignored = read(timer_.get(), &expirations, sizeof expirations);
    if (phase_ == Phase::drain) return;
    const std::uint64_t now = bench::now_ns();
    for (; schedule_->due_ns() <= now; schedule_->advance()) {
      if (idle_.empty()) {
        backlog_.push_back(schedule_->due_ns());
        counts_.max_backlog = std::max<std::uint64_t>(counts_.max_backlog, backlog_.size());
        if (backlog_.size() > kMaxBacklog) {
          std::fprintf(stderr, "error: --rate is far above what the target can answer\n");
          std::exit(1);
        }
      } else {
        Client& client = *idle_.front();
        idle_.pop_front();
        issue(client, schedule_->due_ns());
      }
    }
    arm_timer();
  }

  std::uint64_t busy_count() const {
    return static_cast<std::uint64_t>(
        std::count_if(clients_.begin(), clients_.end(), [](const Client& client) { return client.busy; }));
  }

  bench::ChatRequest request_;
  Plan plan_;
  bench::UsageProbe probe_;
  bench::Poller poller_;
  std::vector<Client> clients_;
  std::vector<char> buffer_;
  bench::Latencies latencies_;
  Counts counts_;
  Phase phase_ = Phase::warm_up;
  std::uint64_t done_ = 0;
  std::uint64_t last_answer_ns_ = 0;
  std::uint64_t window_begin_ns_ = 0;
  std::uint64_t window_end_ns_ = 0;
  std::uint64_t measured_ns_ = 0;
  // Open loop only.
  Fd timer_;
  std::unique_ptr<Schedule> schedule_;
  std::deque<Client*> idle_;
  std::deque<std::uint64_t> backlog_;  // due times that found every connection busy
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv,
                                   {BENCH_REQUEST_FLAGS, "--connections", "--warm-up-ms", "--milliseconds",
                                    "--requests", "--rate", "--watch-pids"});
  const std::uint64_t requests = arguments.number("--requests", 0, 1, 1'000'000'000);
  const Plan plan{
      .connections = arguments.number("--connections", 1, 1, 10'000),
      .warm_up_ns = requests > 0 ? 0 : arguments.number("--warm-up-ms", 500, 0, 60'000) * kMillisecond,
      .window_ns = arguments.number("--milliseconds", 5'000, 1, 600'000) * kMillisecond,
      .request_limit = requests,
      .rate = static_cast<double>(arguments.number("--rate", 0, 1, 10'000'000)),
  };
  if (requests > 0 && plan.rate > 0) {
    std::fprintf(stderr, "error: --requests: cannot be joined with --rate\n");
    return 2;
  }
  bench::raise_fd_limit();
  LoadGenerator generator(bench::make_chat_request(arguments, false), plan,
                          bench::parse_pids(arguments.text("--watch-pids", "")));
  generator.run();
  generator.print();
}
