#include "engine_place.hpp"

#include <utility>

namespace handoff::mock {
namespace {

constexpr auto kForEver = std::chrono::hours(24);

}  // namespace

EnginePlace::EnginePlace(Engine& engine, const ApiRequest& request)
    : engine_(engine), request_(request), gauge_(&engine.gauges().queued) {
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

bool EnginePlace::try_take_blocks() {
  std::int64_t needed = 0;
  for (std::size_t prompt = 0; prompt < request_.prompts.size(); ++prompt)
    needed += blocks_of(prompt) * request_.n;
  if (needed > engine_.blocks().free()) return false;
  for (std::size_t prompt = 0; prompt < request_.prompts.size(); ++prompt) {
    for (std::int64_t choice = 0; choice < request_.n; ++choice) {
      BlockIds blocks;
      if (engine_.blocks().try_allocate(blocks_of(prompt), blocks)) blocks_.push_back(std::move(blocks));
    }
  }
  return true;
}

}  // namespace handoff::mock
