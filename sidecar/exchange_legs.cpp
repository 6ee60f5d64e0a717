// A DisaggregatedExchange's legs: started, retried, received, given up.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "sidecar/disaggregated_exchange_state.hpp"
#include "sidecar/give_memory_back.hpp"

namespace handoff::sidecar {

// `is_last`: no other try will be made, so nothing has to be kept for one.
LegRequest DisaggregatedExchange::request_of(Leg& leg, bool is_last) {
  const auto hook = [&](std::uint32_t flag, void (DisaggregatedExchange::*tell)(Leg&)) {
    if ((leg.flags & flag) == 0) return std::function<void()>();
    return std::function<void()>([this, &leg, tell] { (this->*tell)(leg); });
  };
  return {.engine = is_last ? std::move(leg.engine) : leg.engine,
          .head = is_last ? std::move(leg.head) : leg.head,
          .body = {leg.body.pieces.data(), leg.body.pieces.size()},
          .upload = nullptr,
          .is_head = leg.is_head,
          .may_resend = (leg.flags & HANDOFF_LEG_MAY_RESEND) != 0,
          .new_connection = lost_in_transit_,
          .deadline = leg.deadline,
          .on_sent = hook(HANDOFF_LEG_WANT_SENT, &DisaggregatedExchange::tell_sent),
          .on_connected = hook(HANDOFF_LEG_WANT_CONNECTED, &DisaggregatedExchange::tell_connected)};
}

// Long before the engine answers: its answer may be what depends on the backend's next step.
void DisaggregatedExchange::tell_sent(Leg& leg) {
  if (!std::exchange(leg.told_sent, true)) push({HANDOFF_EVENT_LEG_SENT, &leg, {}});
}

void DisaggregatedExchange::tell_connected(Leg& leg) {
  push({HANDOFF_EVENT_LEG_CONNECTED, &leg, {}});
}

// A leg beside which nothing happens is awaited in place: a coroutine of its own would be work without use.
bool DisaggregatedExchange::runs_alone(const Leg& leg) const {
  constexpr auto kWatched =
      HANDOFF_LEG_WANT_SENT | HANDOFF_LEG_WANT_HEAD | HANDOFF_LEG_WANT_BODY | HANDOFF_LEG_WANT_CONNECTED;
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
  if (leg.upstream->lost_in_transit()) lost_in_transit_ = true;
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
  return leg.asks_prefill() ? services_.plan.config.prefill_retries : 0;
}

Awaitable<LegFailure> DisaggregatedExchange::open_with_retries(Leg& leg) {
  const auto& config = services_.plan.config;
  const auto began = Clock::now();
  const auto deadline = leg.deadline;  // of all tries together
  for (auto retries = retries_of(leg);; --retries) {
    const auto failure = co_await leg.upstream->open();
    const auto status = failure == LegFailure::none ? leg.upstream->head().status : 0;
    const bool nothing_sent = failure == LegFailure::name || failure == LegFailure::connect ||
                              failure == LegFailure::connect_timeout;
    const bool may_pass = status == 502 || status == 503 || status == 504;
    const bool worth_it = nothing_sent || (may_pass && (leg.flags & HANDOFF_LEG_MAY_RESEND) != 0);
    if (retries == 0 || !worth_it || leg.given_up) co_return failure;
    if (deadline.count() > 0) {
      const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - began);
      leg.deadline = deadline - passed - config.prefill_retry_backoff;
      if (leg.deadline.count() <= 0) co_return failure;  // the engine's own words rather than ours
    }
    services_.counters.add("prefill_retries");
    ++request_->record.prefill_retries;
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
  leg.collected = leg.upstream->take_whole_reply(failure);
  if (failure == LegFailure::none && !leg.share.grow_to(leg.collected.capacity()))
    failure = LegFailure::overloaded;
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
  // Whoever wants to know when a request is out has a step to take then, which is not taken any more: the
  // engine would get a request that nobody completes.
  const bool waits_for_step = (leg.flags & HANDOFF_LEG_WANT_SENT) != 0 && !leg.upstream->request_sent();
  const bool may_linger =
      how == GiveUp::may_linger && leg.linger.count() > 0 && !waits_for_step && !services_.ending;
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

}  // namespace handoff::sidecar
