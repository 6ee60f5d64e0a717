// The story of an exchange. Its legs are in exchange_legs.cpp, answers of our own in exchange_answer.cpp, the
// backend's side in backend_events.cpp and backend_turn.cpp.
#include "sidecar/disaggregated_exchange.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "shared/telemetry/log.hpp"
#include "sidecar/disaggregated_exchange_state.hpp"
#include "sidecar/engine_error.hpp"
#include "sidecar/give_memory_back.hpp"
#include "sidecar/pass_through.hpp"

namespace handoff::sidecar {
namespace {

// Which entry and what it returned; HANDOFF_FAILED is also what an exception becomes.
void log_backend_failure(std::string_view entry, handoff_status status) {
  telemetry::LogLine(telemetry::Level::error, "backend_failed")
      .field("entry", entry)
      .field("returned", status);
}

}  // namespace

DisaggregatedExchange::DisaggregatedExchange(LoopServices& services, std::shared_ptr<RequestContext> request,
                                             ClientConnection& client, ResponseRelay& relay,
                                             CancelSource& cancel)
    : services_(services),
      request_(std::move(request)),
      client_(client),
      relay_(relay),
      cancel_(cancel),
      signal_(services.context.get_executor()) {}

DisaggregatedExchange::~DisaggregatedExchange() = default;

Awaitable<ExchangeOutcome> DisaggregatedExchange::run() {
  request_->record.mode = ExchangeMode::disaggregated;
  relay_.on_flowing([this] { let_go_of_body(); });
  cancel_.set_handler([this] {
    const bool client_left = cancel_.reason() == CancelReason::client_gone;
    give_up_all(client_left ? GiveUp::may_linger : GiveUp::at_once);
    signal_.notify();
  });
  if (const auto status = begin(); status != HANDOFF_OK && !settled_) {
    log_backend_failure("begin", status);
    give_up_all(GiveUp::may_linger);
    actions_.clear();
    const auto error = made_error(SidecarError::backend_failed, "The backend plugin failed.");
    co_await answer(error);
  }
  if (!actions_.empty()) co_await carry_out();
  while (!settled_ && !cancel_.cancelled()) {
    if (events_.empty()) {
      if (nothing_moves()) {  // nobody will ever answer
        const auto error =
            made_error(SidecarError::backend_failed, "The backend plugin left the request unanswered.");
        co_await answer(error);
        break;
      }
      co_await signal_.wait();
      continue;
    }
    const auto event = std::move(events_.front());
    events_.erase(events_.begin());
    if (event.leg->given_up) continue;
    const auto status = deliver(event);
    if (event.kind == HANDOFF_EVENT_LEG_BODY) let_read_on(*event.leg);
    if (status != HANDOFF_OK) {
      log_backend_failure("event", status);
      events_.clear();
      actions_.clear();
      const auto error = made_error(SidecarError::backend_failed, "The backend plugin failed.");
      co_await answer(error);
      break;
    }
    if (!actions_.empty()) co_await carry_out();
  }
  give_up_all(GiveUp::may_linger);
  co_await wait_for_relaying_legs();
  cancel_.clear_handler();

  auto result = outcome();
  if (wants_decode_only_ && !cancel_.cancelled()) {
    request_->record.mode = ExchangeMode::decode_only;
    std::vector<HeaderOverride> overrides;
    for (const auto& [name, value] : decode_only_headers_) overrides.push_back({name, value});
    const PassThroughOptions options{.overrides = overrides, .may_resend = true};
    result = co_await pass_through(services_, *request_, client_, relay_, cancel_, options);
  } else if (cancel_.reason() == CancelReason::shutdown && !relay_.started()) {
    const auto error = made_error(SidecarError::request_cancelled, "The sidecar is shutting down.");
    co_await answer(error);
  } else if (result != ExchangeOutcome::answered && relay_.started() && !client_.gone()) {
    relay_.break_off();
  }
  tell_rest();
  tell_end(result);
  co_return result;
}

ExchangeOutcome DisaggregatedExchange::outcome() const {
  if (cancel_.reason() == CancelReason::client_gone || client_.gone()) return ExchangeOutcome::client_gone;
  if (relay_.complete()) return ExchangeOutcome::answered;
  if (cancel_.reason() == CancelReason::shutdown) return ExchangeOutcome::cancelled;
  return broken_ ? ExchangeOutcome::broken : ExchangeOutcome::answered;
}

Awaitable<> DisaggregatedExchange::carry_out() {
  // A leg awaited in place brings events, which are told after all of this entry's actions; no entry runs
  // meanwhile, so there are no further actions.
  for (auto& action : actions_) {
    if (cancel_.cancelled()) break;
    const auto* begun = std::get_if<StartLeg>(&action);
    if (begun == nullptr) {
      co_await carry_out_one(action);
      continue;
    }
    auto& leg = *begun->leg;
    leg.upstream.emplace(services_.legs, request_of(leg, retries_of(leg) == 0));
    if (runs_alone(leg)) {
      ++running_;
      co_await run_leg(leg);
      --running_;
    } else {
      spawn(leg);
    }
  }
  actions_.clear();
}

Awaitable<> DisaggregatedExchange::carry_out_one(Action& action) {
  if (auto* given = std::get_if<CancelLeg>(&action)) {
    give_up(*given->leg, GiveUp::at_once);
  } else if (auto* chosen = std::get_if<RelayLeg>(&action)) {
    auto& leg = *chosen->leg;
    if (leg.finished) {
      leg.relayed = true;
      const auto end = co_await relay_.relay(*leg.upstream, leg.collected, true);
      note_relay_end(end);
    } else {
      leg.relay_requested = true;
      leg.parked = false;
      leg.wake.notify();
      if (leg.upstream) leg.upstream->nudge();
    }
  } else if (auto* own = std::get_if<Respond>(&action)) {
    if (own->more) {
      const auto end = co_await relay_.begin(own->answer);
      if (end != RelayEnd::complete) note_relay_end(end);
      for (const auto& leg : legs_) {
        if (leg->reply == HANDOFF_REPLY_STREAM) unpark(*leg);
      }
    } else {
      co_await answer(own->answer);
    }
  } else if (auto* more = std::get_if<Write>(&action)) {
    const std::string_view piece = more->bytes;
    const std::span<const std::string_view> pieces(&piece, 1);
    const auto end = co_await relay_.write(pieces, more->last);
    if (more->last || end != RelayEnd::complete) note_relay_end(end);
  } else if (auto* failed = std::get_if<FailWithLeg>(&action)) {
    co_await settle_with_leg(*failed->leg);
  } else if (std::holds_alternative<DecodeOnly>(action)) {
    wants_decode_only_ = true;
    settled_ = true;
  }
}

}  // namespace handoff::sidecar
