#include "sidecar/engine_health.hpp"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <utility>

#include "shared/telemetry/log.hpp"
#include "sidecar/leg_head.hpp"

namespace handoff::sidecar {
namespace {

constexpr milliseconds kLongestQuestion{5000};
// An engine that is starting is asked more often than one that serves, so that it is not left out for long.
constexpr milliseconds kWhileUnhealthy{500};

}  // namespace

EngineHealth::EngineHealth(LoopServices& services, std::string path, milliseconds interval)
    : services_(services), path_(std::move(path)), interval_(interval), timer_(services.context) {}

void EngineHealth::stop() {
  stopped_ = true;
  timer_.cancel();
  if (asking_ != nullptr) asking_->cancel();
}

Awaitable<> EngineHealth::run() {
  bool known = false;
  while (!stopped_) {
    const bool healthy = co_await is_healthy();
    if (stopped_) co_return;
    const bool is_news = !known || healthy != services_.readiness.engine_healthy();
    known = true;
    services_.readiness.set_engine_healthy(
        healthy);  // before it is told: who reads the line may ask /ready at once
    if (is_news) {
      telemetry::LogLine(healthy ? telemetry::Level::info : telemetry::Level::warn, "engine_health")
          .field("healthy", healthy)
          .field("engine", services_.plan.local_engine.authority)
          .field("path", path_);
    }
    timer_.expires_after(healthy ? interval_ : std::min(interval_, kWhileUnhealthy));
    co_await timer_.async_wait(net::as_tuple(kUseAwaitable));
  }
}

Awaitable<bool> EngineHealth::is_healthy() {
  const LegHead head{.method = "GET",
                     .target = path_,
                     .engine = &services_.plan.local_engine,
                     .client = nullptr,
                     .overrides = {},
                     .keep_accept_encoding = false,
                     .request_id_if_absent = {}};
  UpstreamLeg leg(services_.legs,
                  LegRequest{.engine = services_.plan.local_engine,
                             .head = write_leg_head(head, {}),
                             .body = {},
                             .upload = nullptr,
                             .is_head = false,
                             .may_resend = true,
                             .deadline = std::min(std::max(interval_, milliseconds(1000)), kLongestQuestion),
                             .on_sent = nullptr,
                             .on_connected = nullptr});
  asking_ = &leg;
  auto failure = co_await leg.open();
  if (failure == LegFailure::none) {
    auto body = leg.first();
    while (body.failure == LegFailure::none && !body.complete) body = co_await leg.read();
    failure = body.failure;
  }
  asking_ = nullptr;
  co_return failure == LegFailure::none&& leg.head().status >= 200 && leg.head().status < 300;
}

}  // namespace handoff::sidecar
