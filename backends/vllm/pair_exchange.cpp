#include "backends/vllm/pair_exchange.hpp"

#include "backends/vllm/finish_reason.hpp"
#include "backends/vllm/leg_bodies.hpp"
#include "backends/vllm/leg_headers.hpp"

namespace handoff::vllm {

PairExchange::PairExchange(const Settings& settings, const sdk::Host& host, const handoff_request& request,
                           const Endpoint& endpoint)
    : settings_(settings), host_(host), request_(request), body_(request.body), endpoint_(endpoint) {}

void PairExchange::on_event(const handoff_event& event, sdk::Turn& turn) {
  if (phase_ == Phase::settled) return;
  if (event.kind == HANDOFF_EVENT_END) {
    phase_ = Phase::settled;  // the engines abort when their legs close
  } else if (phase_ == Phase::other) {
    on_other_event(event, turn);
  } else if (phase_ == Phase::relaying) {
    if (event.leg == decode_leg_ && event.kind == HANDOFF_EVENT_LEG_FAILED) on_decode_failed(event, turn);
  } else if (event.leg == prefill_leg_) {
    on_prefill(event, turn);
  } else if (event.leg == decode_leg_) {
    on_decode(event, turn);
  } else {
    on_other_event(event, turn);
  }
}

void PairExchange::start_pair(const Told& prefill_told, const Told& decode_told, bool from_memory,
                              sdk::Turn& turn) {
  phase_ = Phase::pairing;
  from_memory_ = from_memory;
  prefill_done_ = decode_spoke_ = decode_done_ = false;
  first_event_ = {};
  const auto prefill = prefill_body(host_, body_, endpoint_, prefill_told.params, {.no_end = true});
  sdk::Leg leg;
  leg.id = prefill_leg_ = next_leg_++;
  leg.role = HANDOFF_ROLE_PREFILL;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.reply = HANDOFF_REPLY_COLLECT;
  if (from_memory) leg.flags = HANDOFF_LEG_WANT_CONNECTED;
  leg.headers = prefill_told.headers;
  leg.body = prefill;
  turn.start(leg);

  const auto decode = decode_body(host_, body_, endpoint_, decode_told.params);
  leg = {};
  leg.id = decode_leg_ = next_leg_++;
  leg.role = HANDOFF_ROLE_DECODE;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.reply = HANDOFF_REPLY_HOLD;
  leg.flags = HANDOFF_LEG_WANT_HEAD | HANDOFF_LEG_WANT_BODY;
  leg.headers = decode_told.headers;
  leg.body = decode;
  turn.start(leg);
}

void PairExchange::on_prefill(const handoff_event& event, sdk::Turn& turn) {
  const bool is_new = event.kind == HANDOFF_EVENT_LEG_CONNECTED && (event.flags & HANDOFF_REUSED) == 0;
  if (is_new && from_memory_) on_new_connection(turn);
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!done && event.kind != HANDOFF_EVENT_LEG_FAILED) return;
  if (done && sdk::is_success(event.status) && host_.json(sdk::view(event.body)).is_object()) {
    on_prefill_reply(event, turn);
    return;
  }
  forget();
  give_up_decode(turn);
  if (sdk::lost_in_transit(event) && !tried_again_) {
    start_over(turn);
  } else if (!done || !sdk::is_success(event.status)) {
    phase_ = Phase::settled;
    turn.fail_with_leg(prefill_leg_);
  } else {
    fail_invalid("The prefill engine's reply is not a JSON object.", prefill_leg_, turn);
  }
}

void PairExchange::prefill_is_done(sdk::Turn& turn) {
  prefill_done_ = true;
  if (!from_memory_ || tried_again_ || decode_spoke_ || decode_done_) relay_decode(turn);
}

void PairExchange::on_decode(const handoff_event& event, sdk::Turn& turn) {
  switch (event.kind) {
    case HANDOFF_EVENT_LEG_HEAD:
      if (!sdk::is_success(event.status)) on_decode_refused(event.status / 100 == 4, turn);
      return;
    case HANDOFF_EVENT_LEG_BODY:
      if (first_event_.take(sdk::view(event.body)) && is_error(host_, first_event_.data())) {
        on_decode_refused(/*by_status_4xx=*/false, turn);
      } else {
        on_decode_spoke(turn);
      }
      return;
    case HANDOFF_EVENT_LEG_DONE:
      decode_done_ = true;
      on_decode_spoke(turn);
      return;
    case HANDOFF_EVENT_LEG_FAILED:
      on_decode_failed(event, turn);
      return;
    default:
      return;
  }
}

/// Also after relay(), which lets decode answer as soon as prefill is done: it may not have said a word yet.
void PairExchange::on_decode_failed(const handoff_event& event, sdk::Turn& turn) {
  phase_ = Phase::settled;
  if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) return;
  forget();
  if (!prefill_done_) turn.cancel(prefill_leg_);
  if (sdk::lost_in_transit(event) && !tried_again_) {
    start_over(turn);
  } else {
    turn.fail_with_leg(decode_leg_);
  }
}

void PairExchange::on_decode_spoke(sdk::Turn& turn) {
  decode_spoke_ = true;
  if (prefill_done_) relay_decode(turn);
}

/// A prefill engine that was restarted has another id than we remember, which decode finds out. Not with a
/// 4xx: that is about the client's request, or decode's load, and would be the answer to a second pair too.
void PairExchange::on_decode_refused(bool by_status_4xx, sdk::Turn& turn) {
  if (!prefill_done_) turn.cancel(prefill_leg_);
  if (by_status_4xx) {
    relay_decode(turn);
    return;
  }
  forget();
  if (from_memory_ && !tried_again_) {
    give_up_decode(turn);
    start_over(turn);
    return;
  }
  relay_decode(turn);
}

void PairExchange::relay_decode(sdk::Turn& turn) {
  phase_ = decode_done_ ? Phase::settled : Phase::relaying;
  turn.relay(decode_leg_);
}

void PairExchange::start_over(sdk::Turn& turn) {
  tried_again_ = true;
  host_.count("started_over");
  phase_ = Phase::other;
  begin_anew(turn);
}

void PairExchange::give_up_decode(sdk::Turn& turn) {
  if (!decode_done_) turn.cancel(decode_leg_);
}

void PairExchange::fail_invalid(std::string_view message, std::uint32_t leg, sdk::Turn& turn) {
  phase_ = Phase::settled;
  host_.count("invalid_handoff");
  turn.fail({.status = 502, .code = "invalid_prefill_handoff", .message = message, .leg = leg});
}

void PairExchange::run_decode_only(std::string_view reason, sdk::Turn& turn) {
  phase_ = Phase::settled;
  host_.count(reason);
  give_up_decode(turn);
  const DecodeHeaders headers(request_);
  turn.decode_only(reason, headers.fields());
}

}  // namespace handoff::vllm
