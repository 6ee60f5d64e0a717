// One request inside the engine: queue, blocks, KV load, and the bookkeeping of how it ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answers.hpp"
#include "engine_place.hpp"
#include "side_channel.hpp"

namespace handoff::mock {

enum class RunResult { kReady, kLoadFailed, kEngineDead };

// Lives in the coroutine that serves the request. The destructor settles whatever is open, so an abandoned
// request (cancelled coroutine) frees its blocks and tells P, exactly once.
class EngineRun {
 public:
  EngineRun(Engine& engine, const ApiRequest& request, std::string request_id, std::int64_t rank);
  ~EngineRun();
  EngineRun(const EngineRun&) = delete;
  EngineRun& operator=(const EngineRun&) = delete;

  // Waits for room, loads KV when this is a decode leg, computes the prompt.
  Awaitable<RunResult> start();
  // What the loaded KV is worth; valid after start() said kReady.
  AnswerKind answer_kind() const { return kind_; }
  std::int64_t cached_tokens() const { return cached_tokens_; }
  // `generated` tokens of each answer are out: blocks that are full with that come into the prefix cache.
  void advance(const std::vector<Completion>& answers, std::size_t generated);
  // The request is over. On P this pins the prompt's blocks; the result goes into the reply.
  Reply finish(const std::vector<Completion>& answers);
  void fail() { place_.end(EnginePlace::Ended::kErrored); }

 private:
  Awaitable<void> hang();
  Awaitable<RunResult> load_kv();
  RunResult weigh(PullOutcome outcome);
  Awaitable<void> compute_prompt();
  Reply pin(const std::vector<Completion>& answers);

  Engine& engine_;
  const ApiRequest& request_;
  std::string request_id_;
  std::int64_t rank_;
  std::optional<RemoteLease> remote_;
  bool told_p_ = true;  // nothing (more) to tell
  EnginePlace place_;
  AnswerKind kind_ = AnswerKind::kRight;
  bool kv_loaded_ = false;
  std::int64_t cached_tokens_ = 0;
};

}  // namespace handoff::mock
