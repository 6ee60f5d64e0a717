#include "sidecar/background_calls.hpp"

#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "shared/telemetry/log.hpp"

namespace handoff::sidecar {
namespace {

constexpr std::size_t kMaxRunning = 4096;

}  // namespace

struct BackgroundCalls::Running {
  Running(LegContext& legs, Call made)
      : call(std::move(made)),
        body(call.body),
        leg(legs, LegRequest{.engine = call.engine,
                             .head = call.head,
                             .body = {&body, 1},
                             .upload = nullptr,
                             .is_head = false,
                             .may_resend = true,
                             .deadline = call.deadline,
                             .on_sent = nullptr,
                             .on_connected = nullptr}) {}
  Call call;
  std::string_view body;
  UpstreamLeg leg;
};

BackgroundCalls::BackgroundCalls(LegContext& legs, Counters& counters) : legs_(legs), counters_(counters) {}
BackgroundCalls::~BackgroundCalls() = default;

void BackgroundCalls::start(Call call) {
  if (cancelled_ || running_.size() >= kMaxRunning) {
    counters_.add("background." + call.name + ".dropped");
    return;
  }
  const auto [at, inserted] = running_.insert(std::make_unique<Running>(legs_, std::move(call)));
  auto& running = **at;
  net::co_spawn(legs_.context, run(running), [this, ended = at](std::exception_ptr error) {
    if (error) counters_.add("background.internal_error");
    running_.erase(ended);
  });
}

void BackgroundCalls::cancel() {
  cancelled_ = true;
  for (const auto& running : running_) running->leg.cancel();
}

Awaitable<> BackgroundCalls::run(Running& running) {
  auto& leg = running.leg;
  auto failure = co_await leg.open();
  if (failure == LegFailure::none) {
    auto body = leg.first();
    while (body.failure == LegFailure::none && !body.complete) body = co_await leg.read();
    failure = body.failure;
  }
  const bool accepted = failure == LegFailure::none && leg.head().status < 400;
  counters_.add("background." + running.call.name + (accepted ? ".ok" : ".failed"));
  if (!accepted) {
    telemetry::LogLine line(telemetry::Level::info, "background_call_failed");
    line.field("call", running.call.name).field("failure", name_of(failure));
    if (failure == LegFailure::none) line.field("status", leg.head().status);
  }
}

}  // namespace handoff::sidecar
