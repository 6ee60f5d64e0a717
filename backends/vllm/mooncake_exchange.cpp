#include "backends/vllm/mooncake_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/vllm/finish_reason.hpp"
#include "backends/vllm/leg_bodies.hpp"
#include "backends/vllm/leg_headers.hpp"
#include "backends/vllm/transfer_params.hpp"

namespace handoff::vllm {
namespace {

constexpr std::uint32_t kQueryDeadlineMs = 5000;
constexpr std::uint64_t kQueryLimit = 1024 * 1024;

bool is_good(std::uint32_t status) {
  return status >= 200 && status < 300;
}

}  // namespace

MooncakeExchange::MooncakeExchange(const Settings& settings, const sdk::Host& host, BootstrapMemory& memory,
                                   const handoff_request& request, const Endpoint& endpoint)
    : settings_(settings),
      host_(host),
      memory_(memory),
      request_(request),
      body_(request.body),
      endpoint_(endpoint),
      prefill_(std::string(sdk::view(request.prefill_host)) + " " + std::to_string(request.prefill_port)) {}

void MooncakeExchange::start(std::uint64_t now_ms, sdk::Turn& turn) {
  if (const auto* ranks = memory_.find(prefill_, now_ms)) {
    from_memory_ = true;
    start_pair(*ranks, turn);
  } else {
    ask_bootstrap(turn);
  }
}

void MooncakeExchange::on_event(const handoff_event& event, sdk::Turn& turn) {
  if (event.kind == HANDOFF_EVENT_END) phase_ = Phase::settled;  // the engines abort when their legs close
  if (phase_ == Phase::settled) return;
  if (phase_ == Phase::asking) {
    if (event.leg == bootstrap_leg_) on_bootstrap(event, turn);
  } else if (phase_ == Phase::relaying) {
    if (event.leg != decode_leg_ || event.kind != HANDOFF_EVENT_LEG_FAILED) return;
    phase_ = Phase::settled;  // it broke before the client had anything of it
    if ((event.flags & HANDOFF_CLIENT_STARTED) == 0) turn.fail_with_leg(decode_leg_);
  } else if (event.leg == prefill_leg_) {
    on_prefill(event, turn);
  } else if (event.leg == decode_leg_) {
    on_decode(event, turn);
  }
}

void MooncakeExchange::ask_bootstrap(sdk::Turn& turn) {
  phase_ = Phase::asking;
  from_memory_ = false;
  sdk::Leg leg;
  leg.id = bootstrap_leg_ = next_leg_++;
  leg.role = HANDOFF_ROLE_AUXILIARY;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.port = settings_.bootstrap_port;
  leg.reply = HANDOFF_REPLY_COLLECT;
  leg.flags = HANDOFF_LEG_MAY_RESEND | HANDOFF_LEG_NO_CLIENT_HEADERS;
  leg.deadline_ms = kQueryDeadlineMs;
  leg.reply_limit = kQueryLimit;
  leg.method = "GET";
  leg.path = "/query";
  leg.name = "bootstrap";
  turn.start(leg);
}

void MooncakeExchange::on_bootstrap(const handoff_event& event, sdk::Turn& turn) {
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!done && event.kind != HANDOFF_EVENT_LEG_FAILED) return;
  if (!done || !is_good(event.status)) {
    phase_ = Phase::settled;
    turn.fail_with_leg(bootstrap_leg_);
    return;
  }
  const auto ranks = read_bootstrap(host_, sdk::view(event.body));
  if (ranks.empty()) {
    phase_ = Phase::settled;
    host_.count("no_bootstrap_ranks");
    turn.fail(
        {.status = 502,
         .code = "invalid_prefill_handoff",
         .message = "The Mooncake bootstrap server of the prefill engine names no rank with an engine_id.",
         .leg = bootstrap_leg_});
    return;
  }
  memory_.remember(prefill_, ranks, event.now_ms);
  start_pair(ranks, turn);
}

/// The endpoint picker's rank, if the engine has it; else any, so that ranks share the load.
const PrefillRank& MooncakeExchange::choose(const std::vector<PrefillRank>& ranks) const {
  if (const auto wanted = chosen_rank(request_, kPrefillRankHeader)) {
    const auto found =
        std::find_if(ranks.begin(), ranks.end(), [&](const auto& r) { return r.rank == *wanted; });
    if (found != ranks.end()) return *found;
  }
  std::uint32_t random = 0;
  host_.random(&random, sizeof(random));
  return ranks[random % ranks.size()];
}

void MooncakeExchange::start_pair(const std::vector<PrefillRank>& ranks, sdk::Turn& turn) {
  phase_ = Phase::pairing;
  decode_done_ = false;
  first_event_ = {};
  const PrefillRank& rank = choose(ranks);
  const auto params = mooncake_params(random_name(host_), sdk::view(request_.prefill_host),
                                      settings_.bootstrap_port, rank.engine_id);
  const auto prefill = prefill_body(host_, body_, endpoint_, params.prefill);
  const std::array prefill_headers{sdk::header(kEngineRankHeader, rank.rank)};
  sdk::Leg leg;
  leg.id = prefill_leg_ = next_leg_++;
  leg.role = HANDOFF_ROLE_PREFILL;
  leg.target = HANDOFF_TARGET_PREFILL;
  leg.reply = HANDOFF_REPLY_COLLECT;
  leg.headers = prefill_headers;
  leg.body = prefill;
  turn.start(leg);

  const auto decode = decode_body(host_, body_, endpoint_, params.decode);
  const DecodeHeaders decode_headers(request_);
  leg = {};
  leg.id = decode_leg_ = next_leg_++;
  leg.role = HANDOFF_ROLE_DECODE;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.reply = HANDOFF_REPLY_HOLD;
  leg.flags = HANDOFF_LEG_WANT_HEAD | HANDOFF_LEG_WANT_BODY;
  leg.headers = decode_headers.fields();
  leg.body = decode;
  turn.start(leg);
}

void MooncakeExchange::on_prefill(const handoff_event& event, sdk::Turn& turn) {
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!done && event.kind != HANDOFF_EVENT_LEG_FAILED) return;
  if (done && is_good(event.status) && host_.json(sdk::view(event.body)).is_object()) {
    const auto reason = finish_reason(host_, sdk::view(event.body));
    // Prefill hands over only what the token limit ended; decode would wait for the rest for ever. Paths
    // without choices have no such reason.
    if (reason.empty() || reason == "length" || decode_done_) {
      relay_decode(turn);
      return;
    }
    phase_ = Phase::settled;
    host_.count("prefill_stopped");
    give_up_decode(turn);
    const DecodeHeaders headers(request_);
    turn.decode_only("prefill_stopped", headers.fields());
    return;
  }
  memory_.forget(prefill_);
  give_up_decode(turn);
  if (!done && lost_in_transit(event) && !tried_again_) {
    start_over(turn);
    return;
  }
  phase_ = Phase::settled;
  if (!done || !is_good(event.status)) {
    turn.fail_with_leg(prefill_leg_);
    return;
  }
  host_.count("invalid_handoff");
  turn.fail({.status = 502,
             .code = "invalid_prefill_handoff",
             .message = "The prefill engine's reply is not a JSON object.",
             .leg = prefill_leg_});
}

void MooncakeExchange::on_decode(const handoff_event& event, sdk::Turn& turn) {
  switch (event.kind) {
    case HANDOFF_EVENT_LEG_HEAD:
      if (!is_good(event.status)) on_decode_refused(turn);
      return;
    case HANDOFF_EVENT_LEG_BODY:
      if (first_event_.take(sdk::view(event.body)) && is_error(host_, first_event_.data()))
        on_decode_refused(turn);
      return;
    case HANDOFF_EVENT_LEG_DONE:
      decode_done_ = true;
      return;
    case HANDOFF_EVENT_LEG_FAILED:
      phase_ = Phase::settled;
      if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) return;
      memory_.forget(prefill_);
      turn.cancel(prefill_leg_);
      if (lost_in_transit(event) && !tried_again_) {
        start_over(turn);
        return;
      }
      turn.fail_with_leg(decode_leg_);
      return;
    default:
      return;
  }
}

/// A prefill engine that was restarted has another id than we remember, which decode finds out.
void MooncakeExchange::on_decode_refused(sdk::Turn& turn) {
  memory_.forget(prefill_);
  turn.cancel(prefill_leg_);
  if (from_memory_ && !tried_again_) {
    turn.cancel(decode_leg_);
    start_over(turn);
    return;
  }
  relay_decode(turn);
}

void MooncakeExchange::relay_decode(sdk::Turn& turn) {
  phase_ = decode_done_ ? Phase::settled : Phase::relaying;
  turn.relay(decode_leg_);
}

void MooncakeExchange::start_over(sdk::Turn& turn) {
  tried_again_ = true;
  host_.count("started_over");
  ask_bootstrap(turn);
}

void MooncakeExchange::give_up_decode(sdk::Turn& turn) {
  if (!decode_done_) turn.cancel(decode_leg_);
}

}  // namespace handoff::vllm
