#include "epp/server/epp_program.hpp"

#include <sched.h>

#include <csignal>
#include <ctime>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "epp/server/ext_proc_server.hpp"
#include "epp/server/grpc_log.hpp"
#include "epp/server/picker.hpp"
#include "shared/telemetry/log.hpp"

namespace handoff::epp {
namespace {

using std::chrono::milliseconds;
using telemetry::Level;
using telemetry::LogLine;

constexpr std::size_t kMostDefaultThreads = 8;
// How often health follows readiness.
constexpr milliseconds kReadinessInterval{100};

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // Blocked, an ignored signal would be kept for us all the same; nohup wants it to have no effect.
  struct sigaction hangup {};
  const bool outlives_terminal = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
  if (!outlives_terminal) sigaddset(&signals, SIGHUP);
  return signals;
}

// Whether a stop signal came within the time.
bool wait_for_signal(milliseconds patience) {
  const sigset_t signals = stop_signals();
  const timespec time{.tv_sec = static_cast<time_t>(patience.count() / 1000),
                      .tv_nsec = static_cast<long>(patience.count() % 1000) * 1'000'000};
  return sigtimedwait(&signals, nullptr, &time) > 0;
}

std::size_t thread_count(const EppConfig& config) {
  if (config.threads != 0) return config.threads;
  // Those that we may use: containers are often bound to a few of a machine's.
  cpu_set_t allowed;
  const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  const std::size_t cores = known ? static_cast<std::size_t>(CPU_COUNT(&allowed)) : 1;
  return std::clamp<std::size_t>(cores, 1, kMostDefaultThreads);
}

void log_start(const EppConfig& config, const ExtProcServer& server) {
  // The first line, whatever the level: whoever started us with port 0 reads the ports from it.
  telemetry::init_logging(Level::info);
  LogLine(Level::info, "listening")
      .field("address", config.bind)
      .field("port", server.port())
      .field("health_port", server.health_port())
      .field("tls", config.secure_serving)
      .field("topology", config.topology == TopologyMode::kDisaggregated ? "disaggregated" : "aggregated")
      .field("model", config.planning.model_name);
  telemetry::flush_logging();
  telemetry::init_logging(telemetry::parse_level(config.log_level).value_or(Level::info));
}

// Until a stop signal: health says what discovery says.
void follow_readiness(const Picker& picker, ExtProcServer& server) {
  bool said = false;
  do {
    if (picker.ready() == said) continue;
    said = picker.ready();
    server.set_ready(said);
    LogLine(Level::info, said ? "ready" : "not_ready")
        .field("reason", said ? "" : "endpoints are not current");
  } while (!wait_for_signal(kReadinessInterval));
}

void drain(const EppConfig& config, ExtProcServer& server) {
  server.set_ready(false);
  LogLine(Level::info, "draining").field("open_streams", server.open_streams());
  const bool at_once = wait_for_signal(config.drain_delay);
  server.stop(at_once ? milliseconds(0) : config.drain_timeout);
  LogLine(Level::info, "stopped");
}

}  // namespace

void prepare_process() {
  let_queues_wait_apart();
  log_grpc_as_ours();
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void run_epp(EppConfig& config, EndpointSource& source, Tokenizer* tokenizer,
             const std::vector<std::string>& warnings) {
  static std::atomic<std::uint64_t> buffered_bytes{0};
  config.limits.buffered_bytes = &buffered_bytes;
  Picker picker(config, tokenizer);
  ExtProcServerOptions options{.bind = config.bind,
                               .port = config.port,
                               .health_port = config.health_port,
                               .secure = config.secure_serving,
                               .certificate_path = config.tls_certificate_path,
                               .key_path = config.tls_key_path,
                               .threads = thread_count(config),
                               .limits = config.limits,
                               .request_body_timeout = config.request_body_timeout,
                               .retry_after_secs = config.retry_after_secs,
                               .report = nullptr};
  if (config.debug_report) options.report = [&picker] { return picker.report(); };
  ExtProcServer server(std::move(options), picker.life());
  log_start(config, server);
  for (const auto& warning : warnings) LogLine(Level::warn, "configuration").field("warning", warning);
  source.start(picker.endpoints());
  follow_readiness(picker, server);
  drain(config, server);
  source.stop();
}

}  // namespace handoff::epp
