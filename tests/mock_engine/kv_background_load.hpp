// A load that the engine can't stop: it goes on when its request is gone, and writes to that request's blocks
// until it ends.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"

namespace handoff::mock {

// Lives in the transfer of one request; the load itself lives on.
class BackgroundLoad {
 public:
  // What the blocks of a load count as whose request is gone: held until the load ends, or lost unless it
  // ends.
  enum class Orphan { kHeld, kLeaked };

  // `load`: its outcome; nothing (only with kLeaked) if neither side will ever know.
  BackgroundLoad(Engine& engine, Awaitable<std::optional<PullOutcome>> load, Orphan orphan);

  // Returns when the load has ended. Without an outcome never.
  Awaitable<PullOutcome> wait();
  bool ended() const { return state_->ended; }
  // The request is gone: its blocks stay with the load.
  void abandon(std::vector<BlockIds>& blocks);

 private:
  struct State {
    bool ended = false;
    bool abandoned = false;
    std::optional<PullOutcome> outcome;
    std::vector<BlockIds> blocks;
  };

  static Awaitable<void> run(Engine& engine, Awaitable<std::optional<PullOutcome>> load,
                             std::shared_ptr<State> state, Orphan orphan);

  Engine& engine_;
  Orphan orphan_;
  // Shared with the coroutine of the load, which may outlive the request.
  std::shared_ptr<State> state_;
};

}  // namespace handoff::mock
