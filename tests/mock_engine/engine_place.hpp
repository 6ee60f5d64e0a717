// A request's place in the engine: which gauge counts it, which KV blocks it has, and how it ended.
#pragma once

#include <vector>

#include "engine.hpp"

namespace handoff::mock {

// Lives in the coroutine that serves the request. The destructor settles whatever is open, so an abandoned
// request (cancelled coroutine) frees its blocks, exactly once.
class EnginePlace {
 public:
  enum class Ended { kNot, kFinished, kErrored };

  EnginePlace(Engine& engine, const ApiRequest& request);
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
  // One entry per prompt and choice. Who takes blocks out of it keeps them.
  std::vector<BlockIds>& blocks() { return blocks_; }

 private:
  void move_to(std::int64_t& gauge);
  bool try_take_blocks();
  std::int64_t blocks_of(std::size_t prompt) const;

  Engine& engine_;
  const ApiRequest& request_;
  std::int64_t* gauge_;
  std::vector<BlockIds> blocks_;
  bool leak_ = false;
  Ended ended_ = Ended::kNot;
};

}  // namespace handoff::mock
