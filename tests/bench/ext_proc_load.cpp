// A gateway's ext_proc traffic on one connection: N streams at a time, each with headers and a body, and on
// demand with response chunks, as fast as they come back or at a given rate. Prints one JSON line.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

#include "arguments.hpp"
#include "ext_proc_stream_client.hpp"
#include "latencies.hpp"
#include "loopback.hpp"
#include "usage_probe.hpp"

namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kSilenceLimit = 10 * kSecond;
constexpr std::uint64_t kMostFailures = 100;
constexpr int kMessageLimit = 64 << 20;

struct Plan {
  std::size_t streams = 1;
  std::uint64_t warm_up_ns = 0;
  std::uint64_t window_ns = 0;
  std::uint64_t stream_limit = 0;  // 0: for the window
  double chunk_rate = 0;           // of all streams together; 0: not paced
  bench::ExtProcClientPlan client;
};

class ExtProcLoad final : public bench::ExtProcClientHost {
 public:
  ExtProcLoad(const std::string& target, const Plan& plan, const bench::ExtProcScript& script,
              std::vector<int> watched)
      : plan_(plan), probe_(std::move(watched)) {
    grpc::ChannelArguments channel;
    channel.SetMaxReceiveMessageSize(kMessageLimit);
    channel.SetMaxSendMessageSize(kMessageLimit);
    stub_ = std::make_unique<bench::ExtProcStreamClient::Stub>(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), channel));
    for (std::size_t i = 0; i < plan.streams; ++i) {
      clients_.emplace_back(*stub_, queue_, *this, plan.client, script, i);
    }
  }

  void run() {
    const std::uint64_t start = bench::now_ns();
    last_answer_ns_ = start;
    window_begin_ns_ = start + plan_.warm_up_ns;
    for (auto& client : clients_) start_stream(client);
    for (std::uint64_t now = start; step(now); now = bench::now_ns()) {
      send_due(now);
      void* tag = nullptr;
      bool ok = false;
      if (queue_.AsyncNext(&tag, &ok, deadline(now)) != grpc::CompletionQueue::GOT_EVENT) continue;
      const auto* done = static_cast<bench::ExtProcStreamClient::Tag*>(tag);
      done->client->on_event(done->operation, ok);
    }
    if (phase_ == Phase::window) close_window(bench::now_ns());
  }

  void on_decision(std::uint64_t started_ns) override {
    last_answer_ns_ = bench::now_ns();
    ++decisions_;
    if (phase_ == Phase::window && !plan_.client.with_response) latencies_.add(last_answer_ns_ - started_ns);
  }

  void on_echo(std::uint64_t due_ns) override {
    last_answer_ns_ = bench::now_ns();
    ++chunks_;
    if (phase_ == Phase::window) latencies_.add(last_answer_ns_ - due_ns);
  }

  void on_stream_end(bench::ExtProcStreamClient& client, bool complete) override {
    if (!complete) {
      if (failures_++ == 0) fault_ = client.fault();
      if (failures_ > kMostFailures) give_up();
    }
    ++ended_;
    start_stream(client);
  }

  // 0, or 3 when an answer was wrong.
  int print() {
    const double seconds = std::max(static_cast<double>(measured_ns_) / 1e9, 1e-9);
    std::printf(R"({"decisions":%llu,"chunks":%llu,"failures":%llu,"seconds":%.3f,"decisions_per_s":%.1f,)"
                R"("chunks_per_s":%.1f,%s,"cores":%s)",
                static_cast<unsigned long long>(decisions_), static_cast<unsigned long long>(chunks_),
                static_cast<unsigned long long>(failures_), seconds,
                static_cast<double>(decisions_) / seconds, static_cast<double>(chunks_) / seconds,
                latencies_.json_members().c_str(), probe_.cores_json().c_str());
    if (probe_.watches()) {
      const auto each = [this](std::uint64_t count) {
        return probe_.cpu_us() / static_cast<double>(std::max<std::uint64_t>(count, 1));
      };
      std::printf(R"(,"cpu_us":%.1f,"cpu_us_per_decision":%.3f,"cpu_us_per_chunk":%.3f)", probe_.cpu_us(),
                  each(decisions_), each(chunks_));
    }
    std::printf("}\n");
    if (failures_ > 0) std::fprintf(stderr, "error: %s\n", fault_.c_str());
    return failures_ > 0 ? 3 : 0;
  }

 private:
  enum class Phase { warm_up, window, over };

  void start_stream(bench::ExtProcStreamClient& client) {
    if (phase_ == Phase::over) return;
    if (plan_.stream_limit > 0 && begun_ >= plan_.stream_limit) return;
    ++begun_;
    client.begin();
  }

  // Moves between the phases; false at the end.
  bool step(std::uint64_t now) {
    if (now > last_answer_ns_ && now - last_answer_ns_ > kSilenceLimit) {
      std::fprintf(stderr, "error: no answer for 10 s\n");
      std::exit(1);
    }
    if (phase_ == Phase::warm_up && now >= window_begin_ns_) {
      phase_ = Phase::window;
      latencies_.clear();
      decisions_ = 0;
      chunks_ = 0;
      probe_.begin();
      window_begin_ns_ = bench::now_ns();
    }
    if (plan_.stream_limit > 0) return ended_ < plan_.stream_limit;
    if (phase_ == Phase::window && now >= window_begin_ns_ + plan_.window_ns) close_window(now);
    return phase_ != Phase::over;
  }

  void close_window(std::uint64_t now) {
    probe_.end();
    measured_ns_ = now - window_begin_ns_;
    phase_ = Phase::over;
  }

  // Chunks are due at fixed times, one after another through all streams.
  void send_due(std::uint64_t now) {
    if (plan_.chunk_rate == 0) return;
    if (next_due_ns_ == 0) next_due_ns_ = static_cast<double>(now);
    for (; next_due_ns_ <= static_cast<double>(now); next_due_ns_ += 1e9 / plan_.chunk_rate) {
      clients_[turn_].send_chunk(static_cast<std::uint64_t>(next_due_ns_));
      turn_ = (turn_ + 1) % clients_.size();
    }
  }

  // A wait of gRPC ends to the millisecond. Paced chunks are closer together than that, so there is none.
  gpr_timespec deadline(std::uint64_t) const {
    const auto patience = plan_.chunk_rate > 0 ? 0 : 20;
    if (patience == 0) return gpr_time_0(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(patience, GPR_TIMESPAN));
  }

  [[noreturn]] void give_up() {
    std::fprintf(stderr, "error: more than %llu streams failed: %s\n",
                 static_cast<unsigned long long>(kMostFailures), fault_.c_str());
    std::exit(1);
  }

  const Plan plan_;
  bench::UsageProbe probe_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<bench::ExtProcStreamClient::Stub> stub_;
  std::deque<bench::ExtProcStreamClient> clients_;  // they do not move
  bench::Latencies latencies_;
  Phase phase_ = Phase::warm_up;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t decisions_ = 0;
  std::uint64_t chunks_ = 0;
  std::uint64_t failures_ = 0;
  std::string fault_;
  double next_due_ns_ = 0;
  std::size_t turn_ = 0;
  std::uint64_t last_answer_ns_ = 0;
  std::uint64_t window_begin_ns_ = 0;
  std::uint64_t measured_ns_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(
      argc, argv,
      {"--port", "--streams", "--body-bytes", "--piece-bytes", "--chunks", "--chunk-bytes", "--chunk-rate",
       "--expect-prefill", "--distinct", "--warm-up-ms", "--milliseconds", "--requests", "--watch-pids"});
  const std::uint64_t port = arguments.number("--port", 0, 1, 65535);
  if (port == 0) {
    std::fprintf(stderr, "error: --port: needed\n");
    return 2;
  }
  Plan plan;
  plan.streams = arguments.number("--streams", 1, 1, 10'000);
  plan.stream_limit = arguments.number("--requests", 0, 1, 1'000'000'000);
  plan.warm_up_ns =
      plan.stream_limit > 0 ? 0 : arguments.number("--warm-up-ms", 500, 0, 60'000) * kMillisecond;
  plan.window_ns = arguments.number("--milliseconds", 5'000, 1, 600'000) * kMillisecond;
  plan.chunk_rate = static_cast<double>(arguments.number("--chunk-rate", 0, 1, 10'000'000));
  plan.client.with_response = arguments.has("--chunks") || arguments.has("--chunk-rate");
  plan.client.paced = plan.chunk_rate > 0;
  plan.client.chunks = arguments.number("--chunks", 0, 0, 1'000'000'000);
  plan.client.expects_prefill = arguments.number("--expect-prefill", 0, 0, 1) == 1;
  plan.client.distinct = arguments.number("--distinct", 0, 0, 1) == 1;
  bench::raise_fd_limit();
  const auto script = bench::make_ext_proc_script(arguments.number("--body-bytes", 1024, 1, 64U << 20U),
                                                  arguments.number("--piece-bytes", 62'000, 1, 64U << 20U),
                                                  arguments.number("--chunk-bytes", 190, 1, 1U << 20U));
  ExtProcLoad load("127.0.0.1:" + std::to_string(port), plan, script,
                   bench::parse_pids(arguments.text("--watch-pids", "")));
  load.run();
  const int code = load.print();
  // Open streams and their queue end with the process.
  std::fflush(stdout);
  std::_Exit(code);
}
