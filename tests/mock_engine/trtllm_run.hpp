// One request inside a TensorRT-LLM engine: queue, blocks, what passes between the two engines.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "answers.hpp"
#include "engine_place.hpp"
#include "trtllm_params.hpp"

namespace handoff::mock {

// What only this kind of engine counts and knows. Owned by the personality.
class TrtllmState {
 public:
  std::int64_t duplicate_ids = 0;          // an id that was used before
  std::int64_t low_ids = 0;                // an id of the engines' own range
  std::int64_t unsigned_requests = 0;      // refused for a missing or wrong signature
  std::int64_t tokenized_again = 0;        // generation was not given the prompt's tokens
  std::int64_t cancelled_in_transfer = 0;  // blocks were on their way
  std::int64_t partner_missing = 0;  // generation waited for a context worker that did not come or is gone
  std::int64_t next_request_id = 0;

  // False when this leg has been asked with that id before; a bounded number of ids is remembered.
  bool use_id(std::int64_t id, Leg leg);

 private:
  std::unordered_set<std::uint64_t> used_ids_;
  std::deque<std::uint64_t> used_order_;
};

enum class TrtllmResult { kReady, kTimedOut, kEngineDead };

// Lives in the coroutine that serves the request; its destructor settles what is open.
class TrtllmRun {
 public:
  TrtllmRun(Engine& engine, TrtllmState& state, const ApiRequest& request, const TrtllmParams& params);
  ~TrtllmRun();
  TrtllmRun(const TrtllmRun&) = delete;
  TrtllmRun& operator=(const TrtllmRun&) = delete;

  Awaitable<TrtllmResult> start();
  // Generation first, on context: returns when generation has taken the blocks.
  Awaitable<TrtllmResult> wait_until_taken();
  AnswerKind answer_kind() const { return kind_; }
  std::int64_t cached_tokens() const { return kv_loaded_ ? request_.prompt_tokens() : 0; }
  // On context, for a request that goes on: keeps the prompt's blocks for generation.
  std::int64_t keep_blocks();
  void finish(const std::vector<Completion>& answers);
  void fail() { place_.end(EnginePlace::Ended::kErrored); }

 private:
  Awaitable<TrtllmResult> load_kv();
  Awaitable<PullOutcome> transfer(RemoteLease remote);
  Awaitable<void> compute_prompt();

  Engine& engine_;
  TrtllmState& state_;
  const ApiRequest& request_;
  const TrtllmParams& params_;
  EnginePlace place_;
  AnswerKind kind_ = AnswerKind::kRight;
  std::string lease_;
  bool in_transfer_ = false;
  bool kv_loaded_ = false;
};

}  // namespace handoff::mock
