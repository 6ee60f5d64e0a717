// Carrying out: legs, and the client's answer. The backend's side is in backend_turn.cpp.
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

// ---------------------------------------------------------------------------------------------------- legs

// `is_last`: no other try will be made, so nothing has to be kept for one.
LegRequest DisaggregatedExchange::request_of(Leg& leg, bool is_last) {
  return {.engine = is_last ? std::move(leg.engine) : leg.engine,
          .head = is_last ? std::move(leg.head) : leg.head,
          .body = leg.body,
          .upload = nullptr,
          .is_head = leg.is_head,
          .may_resend = (leg.flags & HANDOFF_LEG_MAY_RESEND) != 0,
          .deadline = leg.deadline,
          .on_sent = (leg.flags & HANDOFF_LEG_WANT_SENT) == 0 ? std::function<void()>()
                                                              : [this, &leg] { tell_sent(leg); }};
}

// Long before the engine answers: its answer may be what depends on the backend's next step.
void DisaggregatedExchange::tell_sent(Leg& leg) {
  if (!std::exchange(leg.told_sent, true)) push({HANDOFF_EVENT_LEG_SENT, &leg, {}});
}

// A leg beside which nothing happens is awaited in place: a coroutine of its own would be work without use.
bool DisaggregatedExchange::runs_alone(const Leg& leg) const {
  constexpr auto kWatched = HANDOFF_LEG_WANT_SENT | HANDOFF_LEG_WANT_HEAD | HANDOFF_LEG_WANT_BODY;
  const bool simple = leg.reply == HANDOFF_REPLY_COLLECT || leg.reply == HANDOFF_REPLY_RELAY ||
                      leg.reply == HANDOFF_REPLY_DISCARD;
  const auto starts =
      std::count_if(legs_.begin(), legs_.end(), [](const auto& other) { return !other->finished; });
  return simple && (leg.flags & kWatched) == 0 && leg.linger.count() == 0 && running_ == 0 && starts == 1;
}

void DisaggregatedExchange::spawn(Leg& leg) {
  ++running_;
  net::co_spawn(services_.context, run_leg(leg), [self = shared_from_this(), &leg](std::exception_ptr error) {
    --self->running_;
    if (error && !leg.finished) {  // out of memory, at most: nothing of ours throws
      leg.finished = true;
      leg.failure = LegFailure::overloaded;
      if (!leg.given_up) self->push({HANDOFF_EVENT_LEG_FAILED, &leg, {}});
    }
    self->signal_.notify();
  });
}

Awaitable<> DisaggregatedExchange::run_leg(Leg& leg) {
  auto failure = LegFailure::none;
  if (retries_of(leg) == 0) {
    failure = co_await leg.upstream->open();
  } else {
    failure = co_await open_with_retries(leg);
  }
  if (failure == LegFailure::none && !leg.given_up) {
    if (leg.reply != HANDOFF_REPLY_COLLECT || !collect_at_once(leg, failure)) failure = co_await receive(leg);
  }
  if (!services_.lingering.empty() && services_.lingering.count(&*leg.upstream) > 0) {
    if (failure == LegFailure::none && !leg.relayed) co_await wait_for_body(leg);
    if (leg.upstream->cancelled()) services_.counters.add("linger_cut_off");
  }
  leg.timer.reset();
  leg.finished = true;
  leg.failure = failure;
  services_.lingering.erase(&*leg.upstream);
  auto& record = request_->record.leg(leg.role);
  if (!leg.given_up || record.failure == LegFailure::none) record_leg(record, *leg.upstream, failure);
  if (failure != LegFailure::none || leg.given_up) leg.upstream->close();
  if (leg.given_up) co_return;
  if (leg.relayed && failure == LegFailure::none) co_return;  // the answer is out: nothing is left to decide
  const bool was_to_answer = leg.reply == HANDOFF_REPLY_RELAY || leg.relay_requested;
  if (failure != LegFailure::none && was_to_answer && claim_ == Claim::leg && !relay_.started()) {
    leg.relayed = false;
    claim_ = Claim::none;  // nothing was said yet: the backend may still find another answer
  }
  push({failure == LegFailure::none ? HANDOFF_EVENT_LEG_DONE : HANDOFF_EVENT_LEG_FAILED, &leg, {}});
}

std::uint64_t DisaggregatedExchange::retries_of(const Leg& leg) const {
  const bool may_retry = leg.role == HANDOFF_ROLE_PREFILL && (leg.flags & HANDOFF_LEG_MAY_RESEND) != 0;
  return may_retry ? services_.plan.config.prefill_retries : 0;
}

Awaitable<LegFailure> DisaggregatedExchange::open_with_retries(Leg& leg) {
  const auto& config = services_.plan.config;
  for (auto retries = retries_of(leg);; --retries) {
    const auto failure = co_await leg.upstream->open();
    const auto status = failure == LegFailure::none ? leg.upstream->head().status : 0;
    const bool worth_it = failure == LegFailure::name || failure == LegFailure::connect ||
                          failure == LegFailure::connect_timeout || status == 502 || status == 503 ||
                          status == 504;
    if (retries == 0 || !worth_it || leg.given_up) co_return failure;
    services_.counters.add("prefill_retries");
    leg.upstream.emplace(services_.legs, request_of(leg, retries == 1));
    leg.timer.emplace(services_.deadlines, [&leg] { leg.wake.notify(); });
    leg.timer->arm(config.prefill_retry_backoff);
    co_await leg.wake.wait();
    leg.timer.reset();
    if (leg.given_up) co_return LegFailure::cancelled;
  }
}

bool DisaggregatedExchange::keep(Leg& leg, std::span<const std::string_view> pieces) {
  for (const auto piece : pieces) {
    const auto size = leg.collected.size() + piece.size();
    if (size > leg.collected.capacity()) {
      const auto room = std::max(size, leg.collected.capacity() * 2);
      if (!leg.share.grow_to(room)) return false;
      leg.collected.reserve(room);
    }
    leg.collected.append(piece);
  }
  return true;
}

// A reply to be collected that came as a whole, with its head: nothing is left to wait for. False: receive()
// has to.
bool DisaggregatedExchange::collect_at_once(Leg& leg, LegFailure& failure) {
  const auto length = leg.upstream->head().content_length;
  const bool is_plain = (leg.flags & HANDOFF_LEG_WANT_HEAD) == 0 && !leg.relay_requested;
  if (!is_plain || !length || *length > leg.reply_limit || !leg.upstream->has_whole_reply()) return false;
  const auto body = leg.upstream->first();
  failure = body.failure;
  if (failure == LegFailure::none && !keep(leg, body.pieces)) failure = LegFailure::overloaded;
  return true;
}

Awaitable<LegFailure> DisaggregatedExchange::receive(Leg& leg) {
  if ((leg.flags & HANDOFF_LEG_WANT_HEAD) != 0) push({HANDOFF_EVENT_LEG_HEAD, &leg, {}});
  if (leg.reply == HANDOFF_REPLY_RELAY) co_return co_await relay_running(leg, /*is_whole=*/false);
  const bool wants_pieces = leg.reply == HANDOFF_REPLY_STREAM ||
                            (leg.reply == HANDOFF_REPLY_HOLD && (leg.flags & HANDOFF_LEG_WANT_BODY) != 0);
  const auto length = leg.upstream->head().content_length.value_or(0);
  if (leg.reply == HANDOFF_REPLY_COLLECT && length > leg.reply_limit) co_return LegFailure::too_large;
  auto body = leg.upstream->first();
  while (true) {
    if (leg.given_up) co_return LegFailure::cancelled;
    if (body.failure != LegFailure::none) co_return body.failure;
    const bool complete = body.complete;
    std::string piece;
    if (wants_pieces) {
      for (const auto part : body.pieces) piece.append(part);
    }
    if (leg.reply == HANDOFF_REPLY_COLLECT || leg.reply == HANDOFF_REPLY_HOLD) {
      if (!keep(leg, body.pieces)) co_return LegFailure::overloaded;
      if (leg.reply == HANDOFF_REPLY_COLLECT && leg.collected.size() > leg.reply_limit)
        co_return LegFailure::too_large;
    }
    if (!piece.empty()) {
      leg.streamed += piece.size();
      push({HANDOFF_EVENT_LEG_BODY, &leg, std::move(piece)});
      if (leg.reply == HANDOFF_REPLY_STREAM)
        co_await leg.wake.wait();  // until the backend, and the client, took it
    }
    if (complete && leg.relay_requested) co_return co_await relay_running(leg, /*is_whole=*/true);
    if (complete) co_return LegFailure::none;
    while (leg.reply == HANDOFF_REPLY_HOLD && leg.collected.size() >= services_.plan.config.max_held_bytes &&
           !leg.relay_requested && !leg.given_up) {
      leg.parked = true;
      signal_.notify();
      co_await leg.wake.wait();
    }
    leg.parked = false;
    if (leg.relay_requested) co_return co_await relay_running(leg, /*is_whole=*/false);
    body = co_await leg.upstream->read();
  }
}

Awaitable<LegFailure> DisaggregatedExchange::relay_running(Leg& leg, bool is_whole) {
  ++relaying_;
  leg.relayed = true;
  const auto held = std::exchange(leg.collected, {});
  const auto end = co_await relay_.relay(*leg.upstream, held, is_whole);
  --relaying_;
  signal_.notify();
  if (end == RelayEnd::engine_failed && !relay_.started()) co_return relay_.failure();
  note_relay_end(end);
  co_return end == RelayEnd::complete ? LegFailure::none : relay_.failure();
}

// The head does not count: engines send that of a stream before they have anything to stream.
Awaitable<> DisaggregatedExchange::wait_for_body(Leg& leg) {
  auto body = leg.upstream->first();
  while (body.failure == LegFailure::none && !body.complete && body.pieces.empty()) {
    body = co_await leg.upstream->read();
  }
}

void DisaggregatedExchange::give_up(Leg& leg, GiveUp how) {
  if (leg.given_up) return;
  leg.given_up = true;
  leg.wake.notify();
  if (!leg.upstream || leg.finished) return;
  const bool may_linger = how == GiveUp::may_linger && leg.linger.count() > 0 && !services_.ending;
  if (may_linger && leg.upstream->body_bytes() == 0) {
    services_.counters.add("lingering_legs");
    services_.lingering.insert(&*leg.upstream);
    leg.timer.emplace(services_.deadlines, [&leg] { leg.upstream->cancel(); });
    leg.timer->arm(leg.linger);
    return;
  }
  leg.upstream->cancel();
}

void DisaggregatedExchange::give_up_all(GiveUp how) {
  for (const auto& leg : legs_) {
    if (!leg->finished) give_up(*leg, how);
  }
}

void DisaggregatedExchange::let_go_of_body() {
  body_gone_ = true;
  request_->body.release();
  give_memory_back(abi_members_);
}

// Before an answer is begun nobody takes the pieces of a STREAM leg off the backend, so it gets no more of
// them than a held leg would keep.
void DisaggregatedExchange::let_read_on(Leg& leg) {
  const bool is_taken = claim_ != Claim::none || leg.streamed < services_.plan.config.max_held_bytes;
  if (leg.reply == HANDOFF_REPLY_STREAM && !is_taken) {
    leg.parked = true;
  } else {
    leg.wake.notify();
  }
}

void DisaggregatedExchange::unpark(Leg& leg) {
  if (std::exchange(leg.parked, false)) leg.wake.notify();
}

// Legs that were given up, or that wait for the backend, bring it no event.
bool DisaggregatedExchange::nothing_moves() const {
  return std::none_of(legs_.begin(), legs_.end(), [](const auto& leg) {
    return leg->upstream && !leg->finished && !leg->given_up && !leg->parked;
  });
}

void DisaggregatedExchange::push(Event event) {
  events_.push_back(std::move(event));
  signal_.notify();
}

Awaitable<> DisaggregatedExchange::wait_for_relaying_legs() {
  while (relaying_ > 0) co_await signal_.wait();
}

// ---------------------------------------------------------------------------------------------- the answer

Answer DisaggregatedExchange::made_error(SidecarError error, std::string_view message, unsigned status) {
  const auto& row = row_of(error);
  request_->record.error_code = row.code;
  return error_answer(error, status == 0 ? row.status : status, message);
}

Awaitable<> DisaggregatedExchange::answer(const Answer& answer) {
  settled_ = true;
  give_up_all(GiveUp::may_linger);
  if (relay_.started()) {  // too late for words
    broken_ = true;
    co_return;
  }
  const auto end = co_await relay_.send(answer);
  note_relay_end(end);
}

void DisaggregatedExchange::note_relay_end(RelayEnd end) {
  settled_ = true;
  if (end == RelayEnd::engine_failed) broken_ = true;
}

Answer DisaggregatedExchange::failed_leg_answer(const Leg& leg) {
  if (leg.role == HANDOFF_ROLE_DECODE) return decode_failure_answer(leg.failure, request_->record);
  const bool auxiliary = leg.role == HANDOFF_ROLE_AUXILIARY;
  const auto timeout =
      auxiliary ? SidecarError::auxiliary_upstream_timeout : SidecarError::prefill_upstream_timeout;
  switch (leg.failure) {
    case LegFailure::name:
      if (auxiliary)
        return made_error(SidecarError::auxiliary_upstream_error, "An engine's host name has no address.");
      return made_error(SidecarError::prefill_upstream_unavailable,
                        "The prefill engine's host name has no address.");
    case LegFailure::connect:
      if (auxiliary)
        return made_error(SidecarError::auxiliary_upstream_error, "An engine could not be connected to.");
      return made_error(SidecarError::prefill_upstream_unavailable,
                        "The prefill engine could not be connected to.");
    case LegFailure::connect_timeout:
      return made_error(timeout, auxiliary ? "An engine could not be reached in time."
                                           : "The prefill engine could not be reached in time.");
    case LegFailure::read_timeout:
      return made_error(timeout, auxiliary ? "An engine did not answer in time."
                                           : "The prefill engine did not answer in time.");
    case LegFailure::deadline:
      if (auxiliary) return made_error(timeout, "An engine did not answer in time.");
      return made_error(SidecarError::prefill_deadline_exceeded, "The prefill engine took too long.");
    case LegFailure::too_large:
      if (auxiliary)
        return made_error(SidecarError::auxiliary_upstream_error, "An engine's reply is too large.");
      return made_error(SidecarError::prefill_response_too_large, "The prefill engine's reply is too large.");
    case LegFailure::overloaded:
      return made_error(SidecarError::sidecar_overloaded, row_of(SidecarError::sidecar_overloaded).message);
    case LegFailure::malformed:
      if (auxiliary)
        return made_error(SidecarError::auxiliary_upstream_error, "An engine's reply is not valid HTTP.");
      return made_error(SidecarError::prefill_upstream_error,
                        "The prefill engine's reply is not valid HTTP.");
    default:
      if (auxiliary)
        return made_error(SidecarError::auxiliary_upstream_error, "An engine closed the connection.");
      return made_error(SidecarError::prefill_upstream_unavailable,
                        "The prefill engine closed the connection without a complete answer.");
  }
}

Awaitable<> DisaggregatedExchange::settle_with_leg(Leg& leg) {
  const bool is_prefill = leg.role == HANDOFF_ROLE_PREFILL;
  const auto status = leg.failure == LegFailure::none ? leg.upstream->head().status : 0;
  // A reply that was passed to the backend in pieces, or dropped, can't be relayed under its own length.
  const bool has_words = status != 0 && leg.collected.size() == leg.upstream->body_bytes();
  if (is_prefill && has_words) request_->record.prefill_error = engine_error_word(leg.collected);
  if (status >= 400 && status < 500 && has_words) {  // about the client's own request: its words, not ours
    settled_ = true;
    give_up_all(GiveUp::may_linger);
    const auto end = co_await relay_.relay(*leg.upstream, leg.collected, true);
    note_relay_end(end);
    co_return;
  }
  if (is_prefill && services_.plan.config.on_prefill_failure == OnPrefillFailure::decode_only) {
    request_->record.reason = "prefill_failed";
    wants_decode_only_ = true;
    settled_ = true;
    co_return;
  }
  if (status == 0) {
    const auto error = failed_leg_answer(leg);
    co_await answer(error);
    co_return;
  }
  if (leg.role == HANDOFF_ROLE_DECODE && has_words) {
    settled_ = true;
    const auto end = co_await relay_.relay(*leg.upstream, leg.collected, true);
    note_relay_end(end);
    co_return;
  }
  const bool is_known = status < 500 || status == 500 || status == 502 || status == 503 || status == 504;
  const bool keeps_status = is_known && status >= 400 && leg.role != HANDOFF_ROLE_AUXILIARY;
  auto error = SidecarError::auxiliary_upstream_error;
  if (is_prefill) error = SidecarError::prefill_upstream_error;
  if (leg.role == HANDOFF_ROLE_DECODE) error = SidecarError::decode_upstream_error;
  auto made = made_error(error, is_prefill ? "The prefill engine failed." : "An engine failed.",
                         keeps_status ? status : 502);
  if (const auto* retry_after = leg.upstream->head().find(HeaderClass::retry_after)) {
    made.headers.emplace_back("retry-after", retry_after->value);
  }
  co_await answer(made);
}

}  // namespace handoff::sidecar
