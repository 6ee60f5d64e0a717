#include "engine_run.hpp"

#include <algorithm>
#include <utility>

namespace handoff::mock {

EngineRun::EngineRun(Engine& engine, KvConnector& connector, const ApiRequest& request,
                     const std::string& request_id, std::int64_t rank)
    : engine_(engine),
      request_(request),
      place_(engine, request, rank),
      transfer_(connector.begin({request, request_id, rank, place_})) {}

Awaitable<LoadResult> EngineRun::start() {
  const bool all_cached =
      request_.prompts.size() == 1 && place_.cached_now(0) + 1 >= request_.prompt_tokens();
  if (const auto reason = transfer_->fatal(all_cached)) {
    engine_.die(*reason);
    co_return LoadResult::kEngineDead;
  }
  transfer_->admitted();
  co_await place_.wait_for_blocks();
  if (engine_.dead()) co_return LoadResult::kEngineDead;
  KvLoad load = co_await transfer_->load();
  kind_ = load.kind;
  if (load.result != LoadResult::kReady || kind_ == AnswerKind::kEmpty) co_return load.result;
  co_await compute_prompt(std::move(load.tokens));
  co_return engine_.dead() ? LoadResult::kEngineDead : LoadResult::kReady;
}

Awaitable<void> EngineRun::compute_prompt(std::vector<std::int64_t> loaded) {
  Counters& counters = engine_.counters();
  std::int64_t to_compute = 0;
  for (std::size_t prompt = 0; prompt < request_.prompts.size(); ++prompt) {
    const auto size = static_cast<std::int64_t>(request_.prompts[prompt].size());
    const std::int64_t hit = place_.cached_tokens(prompt);
    const std::int64_t outside = prompt < loaded.size() ? std::max<std::int64_t>(loaded[prompt] - hit, 0) : 0;
    counters.cache_queries += size;
    counters.local_cache_hit += hit;
    counters.external_kv_transfer += outside;
    counters.local_compute += size - hit - outside;
    cached_tokens_ += hit + outside;
    to_compute += size - hit - outside;
  }
  co_await place_.compute(to_compute);
  // What was read from the wrong blocks is not this prompt's.
  if (kind_ != AnswerKind::kRight) co_return;
  place_.store_prompts();
  transfer_->computed();
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
  return transfer_->finish(answers);
}

}  // namespace handoff::mock
