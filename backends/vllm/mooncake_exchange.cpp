#include "backends/vllm/mooncake_exchange.hpp"

#include <algorithm>
#include <array>

#include "backends/vllm/finish_reason.hpp"
#include "backends/vllm/leg_headers.hpp"
#include "backends/vllm/transfer_params.hpp"

namespace handoff::vllm {
namespace {

constexpr std::uint32_t kQueryDeadlineMs = 5000;
constexpr std::uint64_t kQueryLimit = 1024 * 1024;

}  // namespace

MooncakeExchange::MooncakeExchange(const Settings& settings, const sdk::Host& host, PrefillMemory& memory,
                                   const handoff_request& request, const Endpoint& endpoint)
    : PairExchange(settings, host, request, endpoint),
      memory_(memory),
      prefill_(endpoints::endpoint_key(request)) {}

void MooncakeExchange::start(std::uint64_t now_ms, sdk::Turn& turn) {
  if (const auto* ranks = memory_.bootstrap.find(prefill_, now_ms)) {
    start_with(*ranks, /*from_memory=*/true, turn);
  } else {
    begin_anew(turn);
  }
}

void MooncakeExchange::begin_anew(sdk::Turn& turn) {
  if (bootstrap_leg_ != 0) turn.cancel(bootstrap_leg_);  // of a check that came too late
  ask(turn);
}

void MooncakeExchange::ask(sdk::Turn& turn) {
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

void MooncakeExchange::on_other_event(const handoff_event& event, sdk::Turn& turn) {
  if (event.leg != bootstrap_leg_) return;
  if (phase_ == Phase::pairing) {
    on_checked(event, turn);
    return;
  }
  const bool done = event.kind == HANDOFF_EVENT_LEG_DONE;
  if (!done && event.kind != HANDOFF_EVENT_LEG_FAILED) return;
  if (!done || event.status >= 500) {
    phase_ = Phase::settled;
    turn.fail_with_leg(bootstrap_leg_);
    return;
  }
  const auto ranks = sdk::is_success(event.status) ? read_bootstrap(host_, sdk::view(event.body))
                                                   : std::vector<PrefillRank>{};
  if (ranks.empty()) {
    host_.count("no_bootstrap_ranks");
    fail_invalid("The Mooncake bootstrap server of the prefill engine names no rank with an engine_id.",
                 bootstrap_leg_, turn);
    return;
  }
  bootstrap_leg_ = 0;
  memory_.bootstrap.remember(prefill_, ranks, event.now_ms);
  start_with(ranks, /*from_memory=*/false, turn);
}

/// Decode would wait for the remembered engine until its time is over. So the bootstrap server is asked
/// again, beside the pair, and what is known of it is good for no other request meanwhile.
void MooncakeExchange::on_new_connection(sdk::Turn& turn) {
  if (bootstrap_leg_ != 0) return;
  forget();
  ask(turn);
}

/// The answer to that. One that names the same engine changes nothing. None at all makes nothing worse for a
/// pair that fails by itself, or whose decode speaks; else decode would wait for nobody.
void MooncakeExchange::on_checked(const handoff_event& event, sdk::Turn& turn) {
  const bool failed = event.kind == HANDOFF_EVENT_LEG_FAILED;
  if (!failed && event.kind != HANDOFF_EVENT_LEG_DONE) return;
  bootstrap_leg_ = 0;
  const auto ranks = failed || !sdk::is_success(event.status) ? std::vector<PrefillRank>{}
                                                              : read_bootstrap(host_, sdk::view(event.body));
  if (ranks.empty()) {
    unconfirmed_ = true;
    if (prefill_done_) fail_unconfirmed(turn);
    return;
  }
  memory_.bootstrap.remember(prefill_, ranks, event.now_ms);
  if (std::find(ranks.begin(), ranks.end(), rank_) != ranks.end() || decode_done_) return;
  if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) return;
  host_.count("engine_changed");
  if (!prefill_done_) turn.cancel(prefill_leg_);
  give_up_decode(turn);
  start_with(ranks, /*from_memory=*/false,
             turn);  // not checked again; the second try is left for what is lost
}

/// Prefill says that it is done, and whether it is still the engine that decode asks can't be learned.
void MooncakeExchange::fail_unconfirmed(sdk::Turn& turn) {
  if (decode_spoke_ || decode_done_) return;
  give_up_decode(turn);
  host_.count("no_bootstrap_ranks");
  fail_invalid(
      "The prefill engine was connected to anew, and its Mooncake bootstrap server names no rank any more.",
      prefill_leg_, turn);
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

void MooncakeExchange::start_with(const std::vector<PrefillRank>& ranks, bool from_memory, sdk::Turn& turn) {
  const PrefillRank& rank = rank_ = choose(ranks);
  unconfirmed_ = false;
  const auto params = mooncake_params(random_name(host_), sdk::view(request_.prefill_host),
                                      settings_.bootstrap_port, rank.engine_id);
  const std::array prefill_headers{sdk::header(kEngineRankHeader, rank.rank)};
  const DecodeHeaders decode_headers(request_);
  start_pair({params.prefill, prefill_headers}, {params.decode, decode_headers.fields()}, from_memory, turn);
}

void MooncakeExchange::on_prefill_reply(const handoff_event& event, sdk::Turn& turn) {
  const auto reply = sdk::view(event.body);
  if (!decode_done_ && !is_answer(host_, reply, endpoint_)) {
    // An error with status 200, say: nobody sends the blocks that decode waits for.
    forget();
    give_up_decode(turn);
    fail_invalid("The prefill engine's reply has no answer.", prefill_leg_, turn);
    return;
  }
  // Prefill hands over only what the token limit ended; decode would wait for the rest until its time is
  // over.
  if (decode_done_ || !ended_by_itself(host_, reply, endpoint_)) {
    prefill_is_done(turn);
    if (unconfirmed_) fail_unconfirmed(turn);
  } else {
    run_decode_only("prefill_stopped", turn);
  }
}

}  // namespace handoff::vllm
