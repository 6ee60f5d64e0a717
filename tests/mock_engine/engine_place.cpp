#include "engine_place.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace handoff::mock {

EnginePlace::EnginePlace(Engine& engine, const ApiRequest& request, std::int64_t rank)
    : engine_(engine), request_(request), gauge_(&engine.gauges().queued), rank_(rank) {
  ++*gauge_;
  engine_.notify();
}

EnginePlace::~EnginePlace() {
  --*gauge_;
  for (const BlockIds& blocks : blocks_) {
    if (leak_) {
      engine_.gauges().leaked_blocks += static_cast<std::int64_t>(blocks.size());
    } else {
      engine_.blocks().release(blocks);
    }
  }
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

void EnginePlace::move_to(std::int64_t& gauge) {
  --*gauge_;
  gauge_ = &gauge;
  ++*gauge_;
  engine_.notify();
}

void EnginePlace::hang() {
  move_to(engine_.gauges().hanging);
}

Awaitable<void> EnginePlace::wait_for_blocks() {
  while (!engine_.dead()) {
    if (engine_.gauges().running < engine_.config().max_running && try_take_blocks()) {
      move_to(engine_.gauges().running);
      co_return;
    }
    co_await engine_.changed().wait_until(Clock::now() + kForEver);
  }
}

std::int64_t EnginePlace::blocks_of(std::size_t prompt) const {
  const std::int64_t size = engine_.config().block_size;
  const auto tokens = static_cast<std::int64_t>(request_.prompts[prompt].size());
  return (tokens + request_.limit - 1 + size - 1) / size;
}

CachedSequence EnginePlace::new_sequence() const {
  CachedSequence sequence;
  sequence.rank = rank_;
  const auto salt = request_.body.find("cache_salt");
  if (salt != request_.body.end() && salt->is_string()) sequence.salt = salt->get<std::string>();
  return sequence;
}

std::int64_t EnginePlace::cached_now(std::size_t prompt) const {
  CachedSequence sequence = new_sequence();
  const auto found = engine_.prefix_cache().find(request_.prompts[prompt], sequence);
  return static_cast<std::int64_t>(found.size()) * engine_.config().block_size;
}

std::int64_t EnginePlace::cached_tokens(std::size_t prompt) const {
  const std::size_t sequence = prompt * static_cast<std::size_t>(request_.n);
  return sequence < cached_tokens_.size() ? cached_tokens_[sequence] : 0;
}

bool EnginePlace::try_take_blocks() {
  // What the cache has is shared, the rest is new. Checked as a whole, so that nothing is evicted in vain.
  std::vector<BlockIds> blocks;
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
      blocks.push_back(found);
      sequences.push_back(sequence);
    }
  }
  if (needed + static_cast<std::int64_t>(free_hits.size()) > engine_.blocks().free()) return false;
  for (const BlockIds& found : blocks) {
    for (const std::int64_t id : found) engine_.blocks().share(id);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto found = static_cast<std::int64_t>(blocks[i].size());
    BlockIds fresh;
    engine_.blocks().try_allocate(blocks_of(i / static_cast<std::size_t>(request_.n)) - found, fresh);
    cached_tokens_.push_back(found * engine_.config().block_size);
    blocks[i].insert(blocks[i].end(), fresh.begin(), fresh.end());
  }
  blocks_ = std::move(blocks);
  sequences_ = std::move(sequences);
  engine_.publish_kv_events();
  return true;
}

Awaitable<void> EnginePlace::compute(std::int64_t tokens) {
  const MockConfig& config = engine_.config();
  if (tokens <= 0) {
    co_await sleep_for(config.ttft);
    co_return;
  }
  const auto done = engine_.book_prefill(config.ttft + config.prefill_per_token * tokens);
  co_await sleep_for(std::chrono::duration_cast<std::chrono::microseconds>(done - Clock::now()));
}

void EnginePlace::store_prompts() {
  if (engine_.dead()) return;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::size_t prompt = i / static_cast<std::size_t>(request_.n);
    engine_.prefix_cache().store(request_.prompts[prompt], blocks_[i], sequences_[i]);
  }
  engine_.publish_kv_events();
}

void EnginePlace::store_answers(const std::vector<Completion>& answers, std::size_t generated) {
  if (!engine_.config().prefix_caching || engine_.dead()) return;
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

}  // namespace handoff::mock
