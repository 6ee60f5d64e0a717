#include "sidecar/event_loop.hpp"

#include <sys/random.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <cstdio>
#include <utility>

#include "shared/telemetry/log.hpp"

namespace handoff::sidecar {
namespace {

constexpr std::size_t kScratchSize = 64 * 1024;
constexpr milliseconds kDefaultEngineIdle{4000};

std::string random_prefix() {
  std::uint64_t bits = 0;
  (void)::getrandom(&bits, sizeof(bits), 0);
  char text[32];
  std::snprintf(text, sizeof(text), "handoff-%016llx", static_cast<unsigned long long>(bits));
  return text;
}

milliseconds engine_idle(const SharedPlan& plan) {
  if (!plan.backend || plan.backend->engine_idle_ms() == 0) return kDefaultEngineIdle;
  return milliseconds(plan.backend->engine_idle_ms());
}

}  // namespace

EventLoop::EventLoop(const SharedPlan& plan, Readiness& readiness,
                     std::span<const std::string> backend_values, std::size_t loops)
    : scratch_(kScratchSize),
      budget_(static_cast<std::size_t>(plan.config.max_buffered_bytes) / loops),
      pool_(deadlines_, engine_idle(plan), static_cast<std::size_t>(plan.config.max_idle_upstream)),
      legs_{.context = context_,
            .pool = pool_,
            .scratch = scratch_,
            .head_limits = {.bytes = static_cast<std::size_t>(plan.config.max_header_bytes)},
            .connect_timeout = plan.config.connect_timeout,
            .read_timeout = plan.config.read_timeout},
      background_(legs_, counters_),
      backend_services_(counters_),
      backend_(plan.backend ? plan.backend->create_instance(backend_services_.api(), backend_values)
                            : nullptr),
      services_{.plan = plan,
                .readiness = readiness,
                .context = context_,
                .deadlines = deadlines_,
                .legs = legs_,
                .budget = budget_,
                .requests = requests_,
                .counters = counters_,
                .background = background_,
                .scratch = scratch_,
                .backend = backend_.get(),
                .backend_services = &backend_services_,
                .draining = false,
                .ending = false,
                .lingering = {}},
      max_sessions_(std::max<std::size_t>(1, static_cast<std::size_t>(plan.config.max_connections) / loops)),
      id_prefix_(random_prefix()) {}

EventLoop::~EventLoop() {
  if (!thread_.joinable()) return;
  finish();
  thread_.join();
}

std::uint16_t EventLoop::listen(const std::string& address, std::uint16_t port, Surface surface) {
  auto listener = std::make_unique<Listener>(
      deadlines_, open_listener(context_, address, port),
      [this, surface] { return surface == Surface::admin || sessions_.size() < max_sessions_; },
      [this, surface](Socket socket) { accept(std::move(socket), surface); });
  auto& listening = *listener;
  listeners_.push_back(std::move(listener));
  net::co_spawn(context_, listening.run(), [](std::exception_ptr error) {
    if (error) telemetry::LogLine(telemetry::Level::error, "listener_ended");
  });
  return listening.port();
}

void EventLoop::watch_engine(std::string path, milliseconds interval) {
  health_.emplace(services_, std::move(path), interval);
  net::co_spawn(context_, health_->run(), [](std::exception_ptr error) {
    if (error) telemetry::LogLine(telemetry::Level::error, "engine_health_ended");
  });
}

void EventLoop::start() {
  work_.emplace(context_.get_executor());
  thread_ = std::thread([this] {
    context_.run();
    finished_.store(true, std::memory_order_release);
  });
}

void EventLoop::accept(Socket socket, Surface surface) {
  char suffix[24];
  std::snprintf(suffix, sizeof(suffix), "-%llx-", static_cast<unsigned long long>(++accepted_));
  auto* session = new ClientSession(services_, std::move(socket), surface, id_prefix_ + suffix);
  sessions_.push_back(*session);
  publish_counts();
  if (services_.draining) session->drain();
  net::co_spawn(context_, session->run(), [this, session](std::exception_ptr error) {
    if (error) {
      counters_.add("sessions_failed");
      telemetry::LogLine(telemetry::Level::error, "session_failed");
    }
    sessions_.erase(sessions_.iterator_to(*session));
    delete session;
    publish_counts();
    for (const auto& listener : listeners_) listener->room_again();
  });
}

void EventLoop::publish_counts() {
  session_count_.store(sessions_.size(), std::memory_order_relaxed);
  background_count_.store(background_.running() + services_.lingering.size(), std::memory_order_relaxed);
}

void EventLoop::close_listeners() {
  net::post(context_, [this] {
    for (const auto& listener : listeners_) listener->close();
    services_.draining = true;
    for (auto& session : sessions_) session.drain();
    publish_counts();
  });
}

void EventLoop::cancel_all() {
  net::post(context_, [this] {
    for (auto& session : sessions_) session.force_end();
    publish_counts();
  });
}

void EventLoop::cancel_background() {
  net::post(context_, [this] {
    background_.cancel();
    publish_counts();
  });
}

void EventLoop::refresh_counts() {
  net::post(context_, [this] { publish_counts(); });
}

void EventLoop::finish() {
  net::post(context_, [this] {
    for (const auto& listener : listeners_) listener->close();
    if (health_) health_->stop();
    background_.cancel();
    services_.ending = true;  // what is given up from now on does not linger
    for (auto* leg : services_.lingering) leg->cancel();
    for (auto& session : sessions_) session.abandon();
    pool_.close();
    deadlines_.stop();
    work_.reset();
  });
}

}  // namespace handoff::sidecar
