// E5 of kv_index_bench: one pick, against an index of string maps.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "tests/bench/kv_index_peers.hpp"
#include "tests/bench/kv_index_prompts.hpp"

namespace handoff::epp::bench {
namespace {

constexpr std::size_t kPickBlocks = 3750;
constexpr std::size_t kPickWorkers = 96;

void flush_caches() {
  static std::vector<std::uint64_t> junk(std::size_t{96} << 17);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < junk.size(); i += 8) sum += ++junk[i];
  benchmark::DoNotOptimize(sum);
}

// One long prompt that every worker holds a different part of, among a million blocks that have nothing to do
// with it.
struct PickScene {
  PickScene() : prompt(make_prompt(1, kPickBlocks)) {
    std::mt19937_64 random(2);
    for (std::size_t w = 0; w < kPickWorkers; ++w) {
      index.add_rank({w, 0});
      const std::size_t blocks = w % 4 == 0 ? kPickBlocks : 1 + random() % kPickBlocks;
      store(index, {w, 0}, prompt, blocks);
      for (std::size_t i = 0; i < blocks; ++i)
        strings.store(prompt.sequence[i], "10.0.12." + std::to_string(w) + ":8000");
    }
    for (std::uint64_t id = 0; id < 1'000'000 / kPromptBlocks; ++id) {
      store(index, {id % kPickWorkers, 0}, make_prompt(100 + id, kPromptBlocks), kPromptBlocks);
    }
  }
  static PickScene& get() {
    static PickScene scene;
    return scene;
  }

  Prompt prompt;
  BlockIndex index;
  StringMapIndex strings;
};

template <typename Pick>
void time_picks(benchmark::State& state, bool cold, Pick&& pick) {
  for (auto _ : state) {
    if (cold) flush_caches();
    const double start = thread_seconds();
    pick();
    state.SetIterationTime(thread_seconds() - start);
  }
}

void pick_index(benchmark::State& state) {
  PickScene& scene = PickScene::get();
  OverlapScores scores;
  time_picks(state, state.range(0) != 0, [&] {
    scene.index.match_prefix(scene.prompt.sequence, {}, scores);
    benchmark::DoNotOptimize(scores.rows().data());
  });
  if (scores.rows().size() != kPickWorkers) state.SkipWithError("wrong answer");
}
BENCHMARK(pick_index)->ArgName("cold")->Arg(0)->Arg(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

void pick_string_map(benchmark::State& state) {
  PickScene& scene = PickScene::get();
  time_picks(state, state.range(0) != 0,
             [&] { benchmark::DoNotOptimize(scene.strings.match(scene.prompt.sequence)); });
}
BENCHMARK(pick_string_map)->ArgName("cold")->Arg(0)->Arg(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

// The worst case for a match: two in a row never have the same holders.
void pick_index_all_sets_differ(benchmark::State& state) {
  static const auto scene = [] {
    auto index = std::make_unique<BlockIndex>();
    const Prompt prompt = make_prompt(1, kPickBlocks);
    std::mt19937_64 random(3);
    for (std::size_t w = 0; w < kPickWorkers; ++w) {
      index->add_rank({w, 0});
      store(*index, {w, 0}, prompt, kPickBlocks);
      if (w % 2 == 0) continue;
      // Odd workers lose a random half; only the even ones match to the end, but all sets differ.
      for (const std::uint64_t hash : prompt.engine) {
        if (random() % 2 == 0) index->apply_removed({w, 0}, Tier::device, {&hash, 1});
      }
    }
    return index;
  }();
  const Prompt prompt = make_prompt(1, kPickBlocks);
  OverlapScores scores;
  time_picks(state, state.range(0) != 0, [&] {
    scene->match_prefix(prompt.sequence, {}, scores);
    benchmark::DoNotOptimize(scores.rows().data());
  });
}
BENCHMARK(pick_index_all_sets_differ)
    ->ArgName("cold")
    ->Arg(0)
    ->Arg(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

void pick_index_7000_workers(benchmark::State& state) {
  static const Prompt prompt = make_prompt(1, 512);
  static const auto scene = [] {
    auto index = std::make_unique<BlockIndex>();
    std::mt19937_64 random(4);
    for (std::size_t w = 0; w < 7000; ++w) {
      index->add_rank({w, 0});
      store(*index, {w, 0}, prompt, 1 + random() % 512);
    }
    return index;
  }();
  OverlapScores scores;
  time_picks(state, false, [&] {
    scene->match_prefix(prompt.sequence, {}, scores);
    benchmark::DoNotOptimize(scores.rows().data());
  });
  state.counters["rows"] = static_cast<double>(scores.rows().size());
}
BENCHMARK(pick_index_7000_workers)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace handoff::epp::bench
