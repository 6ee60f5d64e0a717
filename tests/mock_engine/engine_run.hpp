// One request inside the engine: queue, blocks, KV load, and the bookkeeping of how it ended.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "answers.hpp"
#include "engine_place.hpp"
#include "kv_connector.hpp"

namespace handoff::mock {

// Lives in the coroutine that serves the request. The destructor settles whatever is open, so an abandoned
// request (cancelled coroutine) frees its blocks and tells P, exactly once.
class EngineRun {
 public:
  EngineRun(Engine& engine, KvConnector& connector, const ApiRequest& request, const std::string& request_id,
            std::int64_t rank);
  EngineRun(const EngineRun&) = delete;
  EngineRun& operator=(const EngineRun&) = delete;

  // Waits for room, loads KV when the connector has some, computes the rest of the prompt.
  Awaitable<LoadResult> start();
  // What the loaded KV is worth; valid after start() said kReady.
  AnswerKind answer_kind() const { return kind_; }
  std::int64_t cached_tokens() const { return cached_tokens_; }
  // `generated` tokens of each answer are out: blocks that are full with that come into the prefix cache.
  void advance(const std::vector<Completion>& answers, std::size_t generated);
  // The request is over. On P the connector keeps the prompt's blocks; the result goes into the reply.
  Reply finish(const std::vector<Completion>& answers);
  void fail() { place_.end(EnginePlace::Ended::kErrored); }

 private:
  Awaitable<void> compute_prompt(std::vector<std::int64_t> loaded);

  Engine& engine_;
  const ApiRequest& request_;
  EnginePlace place_;
  std::unique_ptr<KvTransfer> transfer_;  // may take blocks out of the place when it goes, so it goes first
  AnswerKind kind_ = AnswerKind::kRight;
  std::int64_t cached_tokens_ = 0;
};

}  // namespace handoff::mock
