// A request's place in the engine: which gauge counts it, which KV blocks it has, and how it ended.
#pragma once

#include <cstdint>
#include <vector>

#include "answers.hpp"
#include "engine.hpp"

namespace handoff::mock {

// Lives in the coroutine that serves the request. The destructor settles whatever is open, so an abandoned
// request (cancelled coroutine) frees its blocks, exactly once.
class EnginePlace {
 public:
  enum class Ended { kNot, kFinished, kErrored };

  // `rank`: of a data-parallel engine, valid.
  EnginePlace(Engine& engine, const ApiRequest& request, std::int64_t rank = 0);
  ~EnginePlace();
  EnginePlace(const EnginePlace&) = delete;
  EnginePlace& operator=(const EnginePlace&) = delete;

  // Waits in the queue until there is room; returns early when the engine dies.
  Awaitable<void> wait_for_blocks();
  // The request waits for something that may never come; its blocks stay with it.
  void hang();
  // The blocks will not be given back.
  void leak() { leak_ = true; }
  void end(Ended how) { ended_ = how; }
  Ended ended() const { return ended_; }
  // How much of a prompt is in the prefix cache: before there was room, and as it was when the blocks were
  // taken.
  std::int64_t cached_now(std::size_t prompt) const;
  std::int64_t cached_tokens(std::size_t prompt) const;
  std::int64_t block_size() const { return engine_.config().block_size; }
  // Takes the time that computing `tokens` of the prompts costs.
  Awaitable<void> compute(std::int64_t tokens);
  // The prompts are in their blocks: these come into the prefix cache and are told to subscribers.
  void store_prompts();
  // `generated` tokens of each answer are out: the same for the blocks that are full with that.
  void store_answers(const std::vector<Completion>& answers, std::size_t generated);
  // One entry per prompt and choice, each beginning with what the prefix cache had. Who takes blocks out of
  // it keeps them.
  std::vector<BlockIds>& blocks() { return blocks_; }

 private:
  void move_to(std::int64_t& gauge);
  CachedSequence new_sequence() const;
  bool try_take_blocks();
  std::int64_t blocks_of(std::size_t prompt) const;

  Engine& engine_;
  const ApiRequest& request_;
  std::int64_t* gauge_;
  std::int64_t rank_;
  std::vector<BlockIds> blocks_;
  std::vector<CachedSequence> sequences_;
  std::vector<std::int64_t> cached_tokens_;
  bool leak_ = false;
  Ended ended_ = Ended::kNot;
};

}  // namespace handoff::mock
