// X1 of kv_index_bench: inserts and finds, against a plain table.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_index.hpp"
#include "tests/bench/kv_index_peers.hpp"
#include "tests/bench/kv_index_prompts.hpp"

namespace handoff::epp::bench {
namespace {

constexpr std::uint32_t kBlockTokens = 16;

// All prompts one after the other in memory, so that reading them costs the index and the table alike next to
// nothing, as what was just decoded does.
struct Prompts {
  std::vector<std::uint64_t> local, sequence, engine;
  std::vector<std::uint32_t> tokens;  // of a few prompts, for as much hashing as events bring

  Prompts() {
    for (std::uint64_t id = 0; id < kPrompts; ++id) {
      const Prompt prompt = make_prompt(id, kPromptBlocks);
      local.insert(local.end(), prompt.local.begin(), prompt.local.end());
      sequence.insert(sequence.end(), prompt.sequence.begin(), prompt.sequence.end());
      engine.insert(engine.end(), prompt.engine.begin(), prompt.engine.end());
    }
    tokens.resize(16 * kPromptBlocks * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), 1U);
  }
  static const Prompts& get() {
    static const Prompts prompts;
    return prompts;
  }
};

std::span<const std::uint64_t> prompt_of(const std::vector<std::uint64_t>& hashes, std::size_t prompt) {
  return std::span(hashes).subspan(prompt * kPromptBlocks, kPromptBlocks);
}

void report_blocks(benchmark::State& state, std::size_t blocks) {
  state.counters["ns_per_block"] =
      benchmark::Counter(static_cast<double>(blocks) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// Calls insert(number of the prompt) for all of them.
template <typename Insert>
void time_inserts(benchmark::State& state, Insert&& insert) {
  const double start = thread_seconds();
  for (std::size_t prompt = 0; prompt < kPrompts; ++prompt) insert(prompt);
  state.SetIterationTime(thread_seconds() - start);
}

BlockIndexOptions options_for(const benchmark::State& state) {
  BlockIndexOptions options;
  options.expected_blocks = state.range(0) != 0 ? kBlocks : 0;
  return options;
}

void store(BlockIndex& index, std::size_t prompt) {
  const Prompts& prompts = Prompts::get();
  index.apply_stored({0, 0}, Tier::device,
                     {std::nullopt, prompt_of(prompts.engine, prompt), prompt_of(prompts.local, prompt)});
}

std::unique_ptr<BlockIndex>& filled_index() {
  static std::unique_ptr<BlockIndex> index;
  return index;
}

// An event of 64 blocks: the engine's hash of each and its hash of 16 tokens are given. Included: the chain
// of hashes, the check for a hash that comes twice, both tables. presized: as the plain table, of its final
// size before the first block comes.
void insert_events(benchmark::State& state) {
  Prompts::get();
  for (auto _ : state) {
    filled_index().reset();
    auto index = std::make_unique<BlockIndex>(options_for(state));
    for (std::uint64_t w = 0; w < 16; ++w) index->add_rank({w, 0});
    time_inserts(state, [&](std::size_t prompt) { store(*index, prompt); });
    filled_index() = std::move(index);
  }
  report_blocks(state, kBlocks);
}
BENCHMARK(insert_events)
    ->ArgName("presized")
    ->Arg(1)
    ->Arg(0)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(3);

// The same, and the hash of each block's tokens, which is X3's subject.
void insert_events_with_tokens(benchmark::State& state) {
  const Prompts& prompts = Prompts::get();
  for (auto _ : state) {
    BlockIndex index(options_for(state));
    index.add_rank({0, 0});
    std::vector<std::uint64_t> local(kPromptBlocks);
    time_inserts(state, [&](std::size_t prompt) {
      for (std::size_t i = 0; i < kPromptBlocks; ++i) {
        const std::size_t block = (prompt * kPromptBlocks + i) % (prompts.tokens.size() / kBlockTokens);
        local[i] = local_block_hash(std::span(prompts.tokens).subspan(block * kBlockTokens, kBlockTokens), {},
                                    kChainSeed);
      }
      benchmark::DoNotOptimize(local.data());
      store(index, prompt);
    });
  }
  report_blocks(state, kBlocks);
}
BENCHMARK(insert_events_with_tokens)
    ->ArgName("presized")
    ->Arg(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(3);

// The part of insert_events that the plain table is spared, because it is given the chain's hashes.
void chain_events(benchmark::State& state) {
  const Prompts& prompts = Prompts::get();
  for (auto _ : state) {
    std::vector<std::uint64_t> sequence(kPromptBlocks);
    time_inserts(state, [&](std::size_t prompt) {
      chain_hashes(std::nullopt, prompt_of(prompts.local, prompt), sequence.data());
      benchmark::DoNotOptimize(sequence.data());
    });
  }
  report_blocks(state, kBlocks);
}
BENCHMARK(chain_events)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

// Without engine hashes: one table, as the plain one.
void insert_predictions(benchmark::State& state) {
  const Prompts& prompts = Prompts::get();
  for (auto _ : state) {
    BlockIndex index(options_for(state));
    index.add_rank({0, 0});
    time_inserts(state, [&](std::size_t prompt) {
      index.predict({0, 0}, prompt_of(prompts.sequence, prompt), {});
    });
  }
  report_blocks(state, kBlocks);
}
BENCHMARK(insert_predictions)
    ->ArgName("presized")
    ->Arg(1)
    ->Arg(0)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(3);

std::unique_ptr<PlainTable>& filled_table() {
  static std::unique_ptr<PlainTable> table;
  return table;
}

void insert_plain_table(benchmark::State& state) {
  const Prompts& prompts = Prompts::get();
  for (auto _ : state) {
    auto table = std::make_unique<PlainTable>(23);
    time_inserts(state, [&](std::size_t prompt) {
      for (const std::uint64_t hash : prompt_of(prompts.sequence, prompt)) table->insert(hash, 0);
    });
    filled_table() = std::move(table);
  }
  report_blocks(state, kBlocks);
}
BENCHMARK(insert_plain_table)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

// As many entries as an event brings: one by our hash and one by the engine's.
void insert_two_plain_tables(benchmark::State& state) {
  const Prompts& prompts = Prompts::get();
  for (auto _ : state) {
    PlainTable by_sequence(23);
    PlainTable by_engine(23);
    time_inserts(state, [&](std::size_t prompt) {
      for (const std::uint64_t hash : prompt_of(prompts.sequence, prompt)) by_sequence.insert(hash, 0);
      for (const std::uint64_t hash : prompt_of(prompts.engine, prompt)) by_engine.insert(hash, 0);
    });
  }
  report_blocks(state, kBlocks);
}
BENCHMARK(insert_two_plain_tables)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

// Whole prompts in random order, 64 blocks each; and only first blocks, where the fixed cost of a match
// shows. Calls find(hashes).
template <typename Find>
void time_finds(benchmark::State& state, Find&& find) {
  const auto blocks = static_cast<std::size_t>(state.range(0));
  std::vector<std::uint32_t> order(kPrompts);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(5));
  std::size_t next = 0;
  for (auto _ : state) {
    find(prompt_of(Prompts::get().sequence, order[next++ % kPrompts]).first(blocks));
  }
  report_blocks(state, blocks);
}

void find_index(benchmark::State& state) {
  if (filled_index() == nullptr) return state.SkipWithError("needs insert_events before it");
  OverlapScores scores;
  time_finds(state, [&](std::span<const std::uint64_t> sequence) {
    filled_index()->match_prefix(sequence, {}, scores);
    benchmark::DoNotOptimize(scores.rows().data());
  });
}
BENCHMARK(find_index)->ArgName("blocks")->Arg(kPromptBlocks)->Arg(1);

void find_plain_table(benchmark::State& state) {
  if (filled_table() == nullptr) return state.SkipWithError("needs insert_plain_table before it");
  time_finds(state, [](std::span<const std::uint64_t> sequence) {
    std::uint64_t sum = 0;
    for (const std::uint64_t hash : sequence) sum += filled_table()->find(hash);
    benchmark::DoNotOptimize(sum);
  });
}
BENCHMARK(find_plain_table)->ArgName("blocks")->Arg(kPromptBlocks)->Arg(1);

}  // namespace
}  // namespace handoff::epp::bench
