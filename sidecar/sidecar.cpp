#include "sidecar/sidecar.hpp"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <csignal>
#include <cstdlib>
#include <map>

#include "shared/telemetry/log.hpp"

namespace handoff::sidecar {
namespace {

constexpr milliseconds kPoll{10};
constexpr milliseconds kAfterCancel{2500};
constexpr milliseconds kBackgroundTime{6000};
constexpr milliseconds kLoopsEnd{5000};

}  // namespace

Sidecar::Sidecar(const SharedPlan& plan, std::span<const std::string> backend_values) : plan_(plan) {
  const auto& config = plan.config;
  const auto count = loop_count(config);
  struct sigaction hangup {};
  const bool outlives_terminal = ::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
  if (!outlives_terminal) signals_.add(SIGHUP);  // ignored: as nohup wants it
  require_free_port(config.bind, config.port);
  for (std::size_t i = 0; i < count; ++i) {
    loops_.push_back(std::make_unique<EventLoop>(plan, readiness_, backend_values, count));
    const auto port = loops_.back()->listen(config.bind, i == 0 ? config.port : port_, Surface::inference);
    if (i == 0) port_ = port;
  }
  if (config.admin_port != "0") {
    const auto wanted = config.admin_port == "auto" ? 0 : std::stoul(config.admin_port);
    require_free_port(config.bind, static_cast<std::uint16_t>(wanted));
    admin_port_ = loops_.front()->listen(config.bind, static_cast<std::uint16_t>(wanted), Surface::admin);
  }
  auto path = config.ready_path;
  auto interval = config.ready_interval;
  if (path.empty()) path = plan.backend ? std::string(plan.backend->health_path()) : "/health";
  if (interval.count() == 0)
    interval = milliseconds(plan.backend ? plan.backend->health_interval_ms() : 1000);
  loops_.front()->watch_engine(std::move(path), std::max(interval, milliseconds(10)));
}

void Sidecar::run() {
  std::function<void(error_code, int)> on_signal = [&](error_code ec, int) {
    if (ec) return;
    if (readiness_.draining()) {
      hurry_ = true;
      timer_.cancel();
    } else {
      readiness_.set_draining();
      net::co_spawn(control_, stop_after_signal(), [this](std::exception_ptr) { control_.stop(); });
    }
    signals_.async_wait(on_signal);
  };
  signals_.async_wait(on_signal);
  for (const auto& loop : loops_) loop->start();
  control_.run();
  log_totals();
  // The stop is done. Another signal must not turn it into a death by signal while the process leaves.
  error_code ignored;
  signals_.clear(ignored);
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
}

// False: there is no time to wait.
Awaitable<bool> Sidecar::pause(milliseconds time) {
  if (hurry_) co_return false;
  timer_.expires_after(time);
  co_await timer_.async_wait(net::as_tuple(kUseAwaitable));
  co_return !hurry_;
}

template <class Condition>
Awaitable<> Sidecar::wait_until(Condition condition, milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (!condition() && Clock::now() < end) {
    for (const auto& loop : loops_) loop->refresh_counts();
    const bool has_time = co_await pause(kPoll);
    if (!has_time) co_return;
  }
}

Awaitable<> Sidecar::stop_after_signal() {
  telemetry::LogLine(telemetry::Level::info, "draining");
  const auto no_sessions = [this] {
    return std::all_of(loops_.begin(), loops_.end(), [](const auto& loop) { return loop->sessions() == 0; });
  };
  const auto no_background = [this] {
    return std::all_of(loops_.begin(), loops_.end(),
                       [](const auto& loop) { return loop->background() == 0; });
  };
  co_await pause(plan_.config.drain_delay);
  for (const auto& loop : loops_) loop->close_listeners();
  co_await pause(kPoll);  // let the loops see to it before their sessions are counted
  co_await wait_until(no_sessions, plan_.config.drain_timeout);
  if (!no_sessions()) {
    telemetry::LogLine(telemetry::Level::warn, "drain_timeout");
    for (const auto& loop : loops_) loop->cancel_all();
  }
  hurry_ = false;  // these waits are short, and what they wait for must not be lost
  co_await wait_until(no_sessions, kAfterCancel);
  for (const auto& loop : loops_) loop->refresh_counts();
  co_await pause(kPoll);
  co_await wait_until(no_background, kBackgroundTime);
  for (const auto& loop : loops_) loop->cancel_background();
  for (const auto& loop : loops_) loop->finish();
  const auto ended = [this] {
    return std::all_of(loops_.begin(), loops_.end(), [](const auto& loop) { return loop->finished(); });
  };
  const auto end = Clock::now() + kLoopsEnd;
  while (!ended() && Clock::now() < end) co_await pause(kPoll);
  if (!ended()) {  // a plugin that does not return, say: nothing is served any more, so leave
    telemetry::LogLine(telemetry::Level::error, "loops_did_not_end");
    telemetry::flush_logging();
    std::_Exit(1);
  }
  for (const auto& loop : loops_) loop->join();
}

void Sidecar::log_totals() const {
  std::map<std::string, std::uint64_t, std::less<>> totals;
  for (const auto& loop : loops_) {
    for (const auto& entry : loop->counters().entries()) {
      totals[entry.group.empty() ? entry.name : entry.group + "." + entry.name] += entry.value;
    }
  }
  telemetry::LogLine line(telemetry::Level::info, "stopped");
  for (const auto& [name, value] : totals) line.field(telemetry::FieldName::of(name), value);
}

}  // namespace handoff::sidecar
