#include "engine_run.hpp"

#include <algorithm>
#include <utility>

#include "handoff_params.hpp"

namespace handoff::mock {
namespace {

constexpr auto kForEver = std::chrono::hours(24);

}  // namespace

EngineRun::EngineRun(Engine& engine, const ApiRequest& request, std::string request_id, std::int64_t rank)
    : engine_(engine),
      request_(request),
      request_id_(std::move(request_id)),
      rank_(rank),
      place_(engine, request, rank) {
  if (request_.leg == Leg::kDecode) {
    remote_ = remote_lease(request_.kv_params);
    told_p_ = !remote_.has_value();
  }
}

EngineRun::~EngineRun() {
  // A dead process tells nobody.
  if (!told_p_ && !engine_.dead()) send_release(engine_, *remote_);
}

Awaitable<RunResult> EngineRun::start() {
  HandoffVerdict verdict = HandoffVerdict::kReadable;
  if (request_.leg == Leg::kDecode) {
    verdict = judge_handoff(request_);
    const bool all_cached =
        request_.prompts.size() == 1 && place_.cached_now(0) + 1 >= request_.prompt_tokens();
    if (verdict == HandoffVerdict::kKillsEngine && !all_cached) {
      told_p_ = true;  // a dead process tells nobody
      engine_.die("decode request without remote_block_ids, or several prompts with one handoff");
      co_return RunResult::kEngineDead;
    }
  }
  // D starts to renew the lease when its scheduler has the request, not earlier.
  std::optional<HeartbeatSender> heartbeats;
  if (request_.leg == Leg::kDecode && remote_ && request_.kv_params.contains("tp_size")) {
    heartbeats.emplace(engine_, *remote_);
  }
  co_await place_.wait_for_blocks();
  if (engine_.dead()) co_return RunResult::kEngineDead;
  if (verdict == HandoffVerdict::kHangs) co_await hang();
  if (verdict == HandoffVerdict::kConfusesEngine) {
    ++engine_.counters().zero_token;
    kind_ = AnswerKind::kEmpty;
    co_return RunResult::kReady;
  }
  if (request_.leg == Leg::kDecode) {
    RunResult loaded = RunResult::kLoadFailed;
    if (verdict == HandoffVerdict::kUnreadable) {
      loaded = weigh(PullOutcome::kUnreachable);
    } else {
      loaded = co_await load_kv();
    }
    if (loaded != RunResult::kReady) co_return loaded;
  }
  heartbeats.reset();
  co_await compute_prompt();
  co_return engine_.dead() ? RunResult::kEngineDead : RunResult::kReady;
}

Awaitable<void> EngineRun::hang() {
  ++engine_.counters().hung_incomplete;
  told_p_ = true;
  place_.leak();
  place_.hang();
  while (true) co_await sleep_for(kForEver);
}

Awaitable<RunResult> EngineRun::load_kv() {
  co_await sleep_for(engine_.config().kv_load);
  if (engine_.dead()) co_return RunResult::kEngineDead;
  const std::uint64_t hash = hash_text(request_.prompt_texts.front());
  const Json block_ids = request_.kv_params.at("remote_block_ids");
  const PullOutcome outcome = co_await pull_blocks(engine_, *remote_, block_ids, hash);
  co_return weigh(outcome);
}

RunResult EngineRun::weigh(PullOutcome outcome) {
  Counters& counters = engine_.counters();
  ++counters.pulls[outcome];
  told_p_ = true;
  switch (outcome) {
    case PullOutcome::kFresh:
      kv_loaded_ = true;
      return RunResult::kReady;
    case PullOutcome::kUnknown:
      ++counters.recomputed;
      return RunResult::kReady;
    case PullOutcome::kConsumed:
    case PullOutcome::kExpired:
    case PullOutcome::kForeign:
      ++counters.wrong_text;
      kv_loaded_ = true;
      kind_ = AnswerKind::kWrongKv;
      return RunResult::kReady;
    case PullOutcome::kMismatch:
    case PullOutcome::kUnreachable:
      ++counters.kv_load_failures;
      if (engine_.config().load_failure_policy == LoadFailurePolicy::kFail) return RunResult::kLoadFailed;
      ++counters.recomputed;
      return RunResult::kReady;
  }
  return RunResult::kLoadFailed;
}

Awaitable<void> EngineRun::compute_prompt() {
  Counters& counters = engine_.counters();
  std::int64_t to_compute = 0;
  for (std::size_t prompt = 0; prompt < request_.prompts.size(); ++prompt) {
    const auto size = static_cast<std::int64_t>(request_.prompts[prompt].size());
    const std::int64_t hit = place_.cached_tokens(prompt);
    counters.cache_queries += size;
    counters.local_cache_hit += hit;
    if (kv_loaded_) {
      counters.external_kv_transfer += size - hit;
      cached_tokens_ += size;
    } else {
      counters.local_compute += size - hit;
      cached_tokens_ += hit;
      to_compute += size - hit;
    }
  }
  co_await place_.compute(to_compute);
  // What was read from the wrong blocks is not this prompt's.
  if (kind_ == AnswerKind::kRight) place_.store_prompts();
}

void EngineRun::advance(const std::vector<Completion>& answers, std::size_t generated) {
  if (kind_ == AnswerKind::kRight) place_.store_answers(answers, generated);
}

Reply EngineRun::finish(const std::vector<Completion>& answers) {
  if (place_.ended() != EnginePlace::Ended::kNot) return nullptr;
  place_.end(EnginePlace::Ended::kFinished);
  std::size_t longest = 0;
  for (const Completion& answer : answers) longest = std::max(longest, answer.tokens.size());
  advance(answers, longest);
  for (const Completion& answer : answers) {
    engine_.counters().generation += answer.token_count();
    ++engine_.counters().by_finish_reason[answer.finish_reason];
  }
  return request_.leg == Leg::kPrefill ? pin(answers) : Reply(nullptr);
}

Reply EngineRun::pin(const std::vector<Completion>& answers) {
  const MockConfig& config = engine_.config();
  std::vector<BlockIds>& held = place_.blocks();
  Reply first = nullptr;
  for (std::size_t i = 0; i < answers.size() && i < held.size(); ++i) {
    const std::size_t prompt = answers[i].prompt;
    const bool stopped = answers[i].finish_reason == "stop";
    if (stopped && config.null_params_on_stop) continue;
    const auto tokens = static_cast<std::int64_t>(request_.prompts[prompt].size());
    const std::int64_t kept = (tokens + config.block_size - 1) / config.block_size;
    LeaseTable::Lease lease;
    lease.blocks.assign(held[i].begin(), held[i].begin() + kept);
    held[i].erase(held[i].begin(), held[i].begin() + kept);
    lease.block_ids = block_ids_json(config, lease.blocks);
    lease.prompt_hash = hash_text(request_.prompt_texts[prompt]);
    // vLLM's internal id: prompt index for completions, and random digits.
    std::string id = request_id_;
    if (request_.api == Api::kCompletions) id += "-" + std::to_string(prompt);
    id += "-" + engine_.random().hex(8);
    // Only the first prompt's handoff is told to anybody; the others wait for their leases to end.
    if (first.is_null()) first = make_handoff(engine_, id, lease.block_ids, tokens, rank_);
    engine_.pin(id, std::move(lease));
  }
  return first;
}

}  // namespace handoff::mock
