#include "trtllm_run.hpp"

#include <utility>

namespace handoff::mock {
namespace {

// Above 2^53, where a reader that takes numbers for doubles loses digits.
constexpr std::int64_t kFirstContextId = (std::int64_t{1} << 53) + 1;

constexpr std::size_t kRememberedIds = 65536;
constexpr auto kPollInterval = std::chrono::milliseconds(5);

}  // namespace

bool TrtllmState::use_id(std::int64_t id, Leg leg) {
  const auto key = static_cast<std::uint64_t>(id) << 1 | (leg == Leg::kDecode ? 1 : 0);
  if (!used_ids_.insert(key).second) return false;
  used_order_.push_back(key);
  if (used_order_.size() > kRememberedIds) {
    used_ids_.erase(used_order_.front());
    used_order_.pop_front();
  }
  return true;
}

TrtllmRun::TrtllmRun(Engine& engine, TrtllmState& state, const ApiRequest& request,
                     const TrtllmParams& params)
    : engine_(engine), state_(state), request_(request), params_(params), place_(engine, request) {}

TrtllmRun::~TrtllmRun() {
  if (in_transfer_ && place_.ended() == EnginePlace::Ended::kNot) {
    // The receiver went away under the sender: both sides lose what they hold for it.
    ++state_.cancelled_in_transfer;
    place_.leak();
  }
  // A context request that is given up while it waits takes its blocks back.
  if (!lease_.empty() && params_.generation_first) engine_.leases().release(lease_);
}

Awaitable<TrtllmResult> TrtllmRun::start() {
  co_await place_.wait_for_blocks();
  if (engine_.dead()) co_return TrtllmResult::kEngineDead;
  if (request_.leg == Leg::kDecode) {
    const TrtllmResult loaded = co_await load_kv();
    if (loaded != TrtllmResult::kReady) co_return loaded;
  }
  co_await compute_prompt();
  co_return engine_.dead() ? TrtllmResult::kEngineDead : TrtllmResult::kReady;
}

// Nobody tells a generation engine that nothing will come: it waits until its time is over.
Awaitable<TrtllmResult> TrtllmRun::load_kv() {
  std::optional<RemoteLease> remote;
  if (params_.info_endpoint) remote = read_info_endpoint(*params_.info_endpoint);
  if (!remote && params_.opaque_state) remote = read_opaque_state(*params_.opaque_state);
  if (remote) remote->request_id = trtllm_lease_name(*params_.ctx_request_id, *params_.disagg_request_id);
  const auto deadline = Clock::now() + engine_.config().lease();
  PullOutcome outcome = PullOutcome::kUnreachable;
  while (remote && !engine_.dead()) {
    outcome = co_await transfer(*remote);
    // With generation first the sender is only about to come.
    const bool too_early = params_.generation_first && outcome == PullOutcome::kUnknown;
    if (!too_early || engine_.is_over(deadline)) break;
    co_await sleep_for(kPollInterval);
  }
  if (engine_.dead()) co_return TrtllmResult::kEngineDead;
  ++engine_.counters().pulls[outcome];
  if (outcome == PullOutcome::kFresh || outcome == PullOutcome::kForeign) {
    kv_loaded_ = true;
    if (outcome == PullOutcome::kForeign) {
      ++engine_.counters().wrong_text;
      kind_ = AnswerKind::kWrongKv;
    }
    co_return TrtllmResult::kReady;
  }
  // A partner that is not there, or never came, is not the fault of whoever made the ids.
  const bool partner_missing = outcome == PullOutcome::kUnreachable || outcome == PullOutcome::kMismatch ||
                               (params_.generation_first && outcome == PullOutcome::kUnknown);
  if (remote && partner_missing) {
    ++state_.partner_missing;
  } else {
    ++engine_.counters().hung_incomplete;
  }
  place_.hang();
  while (!engine_.dead() && !engine_.is_over(deadline)) co_await engine_.changed().wait_until(deadline);
  co_return engine_.dead() ? TrtllmResult::kEngineDead : TrtllmResult::kTimedOut;
}

Awaitable<PullOutcome> TrtllmRun::transfer(RemoteLease remote) {
  const std::uint64_t hash = hash_text(request_.prompt_texts.front());
  const Json no_block_ids;
  // Whoever comes first waits for the other; only then do blocks move.
  in_transfer_ = !params_.generation_first;
  if (in_transfer_) co_await sleep_for(engine_.config().kv_load);
  const PullOutcome outcome = co_await pull_blocks(engine_, remote, no_block_ids, hash);
  if (params_.generation_first && outcome == PullOutcome::kFresh) {
    in_transfer_ = true;
    co_await sleep_for(engine_.config().kv_load);
  }
  in_transfer_ = false;
  co_return outcome;
}

Awaitable<void> TrtllmRun::compute_prompt() {
  Counters& counters = engine_.counters();
  const std::int64_t tokens = request_.prompt_tokens();
  std::int64_t hit = 0;
  for (std::size_t prompt = 0; prompt < request_.prompts.size(); ++prompt)
    hit += place_.cached_tokens(prompt);
  counters.cache_queries += tokens;
  counters.local_cache_hit += hit;
  if (kv_loaded_) {
    counters.external_kv_transfer += tokens - hit;
  } else {
    counters.local_compute += tokens - hit;
    co_await place_.compute(tokens - hit);
  }
  if (kind_ == AnswerKind::kRight) place_.store_prompts();
}

std::int64_t TrtllmRun::keep_blocks() {
  const MockConfig& config = engine_.config();
  // With generation first both sides know only the global id.
  const std::int64_t id =
      params_.generation_first ? *params_.disagg_request_id : kFirstContextId + state_.next_request_id++;
  const std::int64_t kept = (request_.prompt_tokens() + config.block_size - 1) / config.block_size;
  BlockIds& blocks = place_.blocks().front();
  LeaseTable::Lease lease;
  lease.blocks.assign(blocks.begin(), blocks.begin() + kept);
  blocks.erase(blocks.begin(), blocks.begin() + kept);
  lease.prompt_hash = hash_text(request_.prompt_texts.front());
  lease_ = trtllm_lease_name(id, *params_.disagg_request_id);
  engine_.pin(lease_, std::move(lease));
  return id;
}

Awaitable<TrtllmResult> TrtllmRun::wait_until_taken() {
  const auto deadline = Clock::now() + engine_.config().lease();
  while (!engine_.dead()) {
    if (!engine_.leases().is_live(lease_)) {
      lease_.clear();
      co_return engine_.lease_is_over(deadline) ? TrtllmResult::kTimedOut : TrtllmResult::kReady;
    }
    co_await engine_.changed().wait_until(deadline);
  }
  co_return TrtllmResult::kEngineDead;
}

void TrtllmRun::finish(const std::vector<Completion>& answers) {
  if (place_.ended() != EnginePlace::Ended::kNot) return;
  place_.end(EnginePlace::Ended::kFinished);
  for (const Completion& answer : answers) {
    engine_.counters().generation += answer.token_count();
    ++engine_.counters().by_finish_reason[answer.finish_reason];
  }
}

}  // namespace handoff::mock
