#include "engine_run.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "handoff_params.hpp"

namespace handoff::mock {
namespace {

constexpr auto kForEver = std::chrono::hours(24);

}  // namespace

EngineRun::EngineRun(Engine& engine, const ApiRequest& request, std::string request_id, std::int64_t rank)
    : engine_(engine), request_(request), request_id_(std::move(request_id)), rank_(rank) {
  place_ = &engine_.gauges().queued;
  ++*place_;
  if (request_.leg == Leg::kDecode) {
    remote_ = remote_lease(request_.kv_params);
    told_p_ = !remote_.has_value();
  }
  engine_.notify();
}

EngineRun::~EngineRun() {
  --*place_;
  for (const BlockIds& blocks : blocks_) {
    if (leak_) {
      engine_.gauges().leaked_blocks += static_cast<std::int64_t>(blocks.size());
    } else {
      engine_.blocks().release(blocks);
    }
  }
  // A dead process tells nobody.
  if (!told_p_ && !engine_.dead()) send_release(engine_, *remote_);
  switch (ended_) {
    case Ended::kFinished:
      ++engine_.counters().finished;
      break;
    case Ended::kErrored:
      ++engine_.counters().errored;
      ++engine_.counters().by_finish_reason["error"];
      break;
    case Ended::kNot:
      ++engine_.counters().aborted;
      ++engine_.counters().by_finish_reason["abort"];
      break;
  }
  engine_.notify();
}

Awaitable<RunResult> EngineRun::start() {
  HandoffVerdict verdict = HandoffVerdict::kReadable;
  if (request_.leg == Leg::kDecode) {
    verdict = judge_handoff(request_);
    CachedSequence sequence = new_sequence();
    const auto hit =
        static_cast<std::int64_t>(engine_.prefix_cache().find(request_.prompts.front(), sequence).size());
    const bool all_cached =
        request_.prompts.size() == 1 && hit * engine_.config().block_size + 1 >= request_.prompt_tokens();
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
  co_await wait_for_blocks();
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

Awaitable<void> EngineRun::wait_for_blocks() {
  while (!engine_.dead()) {
    if (engine_.gauges().running < engine_.config().max_running && try_take_blocks()) {
      --*place_;
      place_ = &engine_.gauges().running;
      ++*place_;
      engine_.notify();
      co_return;
    }
    co_await engine_.changed().wait_until(Clock::now() + kForEver);
  }
}

Awaitable<void> EngineRun::hang() {
  ++engine_.counters().hung_incomplete;
  leak_ = true;
  told_p_ = true;
  --*place_;
  place_ = &engine_.gauges().hanging;
  ++*place_;
  engine_.notify();
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
  const MockConfig& config = engine_.config();
  Counters& counters = engine_.counters();
  std::int64_t to_compute = 0;
  for (std::size_t prompt = 0; prompt < request_.prompts.size(); ++prompt) {
    const auto size = static_cast<std::int64_t>(request_.prompts[prompt].size());
    const std::int64_t hit = hit_tokens_[prompt * static_cast<std::size_t>(request_.n)];
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
  if (to_compute > 0) {
    const auto done = engine_.book_prefill(config.ttft + config.prefill_per_token * to_compute);
    co_await sleep_for(std::chrono::duration_cast<std::chrono::microseconds>(done - Clock::now()));
  } else {
    co_await sleep_for(config.ttft);
  }
  // What was read from the wrong blocks is not this prompt's.
  if (engine_.dead() || kind_ != AnswerKind::kRight) co_return;
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    engine_.prefix_cache().store(request_.prompts[i / static_cast<std::size_t>(request_.n)], blocks_[i],
                                 sequences_[i]);
  engine_.publish_kv_events();
}

CachedSequence EngineRun::new_sequence() const {
  CachedSequence sequence;
  sequence.rank = rank_;
  const auto salt = request_.body.find("cache_salt");
  if (salt != request_.body.end() && salt->is_string()) sequence.salt = salt->get<std::string>();
  return sequence;
}

void EngineRun::advance(const std::vector<Completion>& answers, std::size_t generated) {
  if (!engine_.config().prefix_caching || kind_ != AnswerKind::kRight || engine_.dead()) return;
  const auto size = static_cast<std::size_t>(engine_.config().block_size);
  for (std::size_t i = 0; i < answers.size() && i < blocks_.size(); ++i) {
    const Tokens& prompt = request_.prompts[answers[i].prompt];
    const std::size_t out = std::min(generated, answers[i].tokens.size());
    // The last token is only sampled; it is computed with the next one.
    const std::size_t computed = prompt.size() + (out > 0 ? out - 1 : 0);
    if (computed / size <= sequences_[i].blocks) continue;
    Tokens tokens = prompt;
    tokens.insert(tokens.end(), answers[i].tokens.begin(),
                  answers[i].tokens.begin() + static_cast<std::ptrdiff_t>(computed - prompt.size()));
    engine_.prefix_cache().store(tokens, blocks_[i], sequences_[i]);
  }
  engine_.publish_kv_events();
}

Reply EngineRun::finish(const std::vector<Completion>& answers) {
  if (ended_ != Ended::kNot) return nullptr;
  ended_ = Ended::kFinished;
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
  Reply first = nullptr;
  for (std::size_t i = 0; i < answers.size() && i < blocks_.size(); ++i) {
    const std::size_t prompt = answers[i].prompt;
    const bool stopped = answers[i].finish_reason == "stop";
    if (stopped && config.null_params_on_stop) continue;
    const auto tokens = static_cast<std::int64_t>(request_.prompts[prompt].size());
    const std::int64_t kept = (tokens + config.block_size - 1) / config.block_size;
    LeaseTable::Lease lease;
    lease.blocks.assign(blocks_[i].begin(), blocks_[i].begin() + kept);
    blocks_[i].erase(blocks_[i].begin(), blocks_[i].begin() + kept);
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

std::int64_t EngineRun::blocks_of(std::size_t prompt) const {
  const std::int64_t size = engine_.config().block_size;
  const auto tokens = static_cast<std::int64_t>(request_.prompts[prompt].size());
  return (tokens + request_.limit - 1 + size - 1) / size;
}

bool EngineRun::try_take_blocks() {
  // What the cache has is shared, the rest is new. Checked as a whole, so that nothing is evicted in vain.
  std::vector<BlockIds> hits;
  std::vector<CachedSequence> sequences;
  std::unordered_set<std::int64_t> free_hits;
  std::int64_t needed = 0;
  for (std::size_t prompt = 0; prompt < request_.prompts.size(); ++prompt) {
    CachedSequence sequence = new_sequence();
    const BlockIds found = engine_.prefix_cache().find(request_.prompts[prompt], sequence);
    for (const std::int64_t id : found) {
      if (engine_.blocks().is_free(id)) free_hits.insert(id);
    }
    for (std::int64_t choice = 0; choice < request_.n; ++choice) {
      needed += blocks_of(prompt) - static_cast<std::int64_t>(found.size());
      hits.push_back(found);
      sequences.push_back(sequence);
    }
  }
  if (needed + static_cast<std::int64_t>(free_hits.size()) > engine_.blocks().free()) return false;
  for (const BlockIds& found : hits) {
    for (const std::int64_t id : found) engine_.blocks().share(id);
  }
  for (std::size_t i = 0; i < hits.size(); ++i) {
    const auto found = static_cast<std::int64_t>(hits[i].size());
    BlockIds fresh;
    const std::int64_t all = blocks_of(i / static_cast<std::size_t>(request_.n));
    if (!engine_.blocks().try_allocate(all - found, fresh)) fresh.clear();
    hit_tokens_.push_back(found * engine_.config().block_size);
    hits[i].insert(hits[i].end(), fresh.begin(), fresh.end());
  }
  blocks_ = std::move(hits);
  sequences_ = std::move(sequences);
  engine_.publish_kv_events();
  return true;
}

}  // namespace handoff::mock
