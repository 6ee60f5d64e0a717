#include "kv_background_load.hpp"

#include <utility>

namespace handoff::mock {
namespace {

std::int64_t count(const std::vector<BlockIds>& blocks) {
  std::int64_t sum = 0;
  for (const BlockIds& each : blocks) sum += static_cast<std::int64_t>(each.size());
  return sum;
}

}  // namespace

BackgroundLoad::BackgroundLoad(Engine& engine, Awaitable<std::optional<PullOutcome>> load, Orphan orphan)
    : engine_(engine), orphan_(orphan), state_(std::make_shared<State>()) {
  ++engine.gauges().loads_waiting;
  spawn(engine.io(), run(engine, std::move(load), state_, orphan), "load");
}

Awaitable<void> BackgroundLoad::run(Engine& engine, Awaitable<std::optional<PullOutcome>> load,
                                    std::shared_ptr<State> state, Orphan orphan) {
  const std::optional<PullOutcome> outcome = co_await std::move(load);
  --engine.gauges().loads_waiting;
  state->outcome = outcome;
  state->ended = true;
  if (state->abandoned) {
    --engine.gauges().loads_orphaned;
    // Without an outcome the blocks stay lost: nobody will ever say that they may be used again.
    if (outcome) {
      if (orphan == Orphan::kLeaked) engine.gauges().leaked_blocks -= count(state->blocks);
      for (const BlockIds& blocks : state->blocks) engine.blocks().release(blocks);
    }
  }
  engine.notify();
}

Awaitable<PullOutcome> BackgroundLoad::wait() {
  while (!state_->outcome) co_await engine_.changed().wait_until(Clock::now() + kForEver);
  co_return *state_->outcome;
}

void BackgroundLoad::abandon(std::vector<BlockIds>& blocks) {
  if (state_->outcome) return;
  state_->abandoned = true;
  state_->blocks = std::move(blocks);
  blocks.clear();
  ++engine_.counters().loads_orphaned;
  if (!state_->ended) ++engine_.gauges().loads_orphaned;
  if (orphan_ == Orphan::kLeaked) engine_.gauges().leaked_blocks += count(state_->blocks);
  engine_.notify();
}

}  // namespace handoff::mock
