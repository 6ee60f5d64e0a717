// The index, its hashing and its event feed against their floors and peers, in one run. Prints the times and
// then the ratios.
//   kv_index_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_index.hpp"
#include "tests/bench/kv_index_peers.hpp"

namespace handoff::epp::bench {
namespace {

// The thread's own CPU time: the machine may be shared.
struct Clock {
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
};

constexpr std::size_t kBlocks = 4'000'000;
constexpr std::size_t kPromptBlocks = 64;
constexpr std::size_t kPrompts = kBlocks / kPromptBlocks;
constexpr std::size_t kPickBlocks = 3750;
constexpr std::size_t kPickWorkers = 96;

struct Prompt {
  std::vector<std::uint64_t> local, sequence, engine;
};

Prompt make_prompt(std::uint64_t id, std::size_t blocks) {
  Prompt prompt;
  std::mt19937_64 random(id);
  for (std::size_t i = 0; i < blocks; ++i) {
    prompt.local.push_back(random());
    prompt.sequence.push_back(i == 0 ? prompt.local[0] : chain_hash(prompt.sequence.back(), prompt.local[i]));
    prompt.engine.push_back(random());
  }
  return prompt;
}

void store(BlockIndex& index, WorkerRank rank, const Prompt& prompt, std::size_t blocks) {
  index.apply_stored(
      rank, Tier::device,
      {std::nullopt, std::span(prompt.engine).first(blocks), std::span(prompt.local).first(blocks)});
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

void flush_caches() {
  static std::vector<std::uint64_t> junk(std::size_t{96} << 17);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < junk.size(); i += 8) sum += ++junk[i];
  benchmark::DoNotOptimize(sum);
}

// --- E5: one pick
// ---------------------------------------------------------------------------------------------------------

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
    const double start = Clock::now();
    pick();
    state.SetIterationTime(Clock::now() - start);
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

// --- X1: find and insert; X2: memory
// ------------------------------------------------------------------------------------------

const std::vector<Prompt>& prompts() {
  static const std::vector<Prompt> all = [] {
    std::vector<Prompt> made;
    for (std::uint64_t id = 0; id < kPrompts; ++id) made.push_back(make_prompt(id, kPromptBlocks));
    return made;
  }();
  return all;
}

std::vector<std::uint32_t> shuffled_prompts() {
  std::vector<std::uint32_t> order(kPrompts);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(5));
  return order;
}

std::unique_ptr<BlockIndex>& filled_index() {
  static std::unique_ptr<BlockIndex> index;
  return index;
}

void insert_index(benchmark::State& state) {
  prompts();
  for (auto _ : state) {
    filled_index().reset();
    auto index = std::make_unique<BlockIndex>();
    for (std::uint64_t w = 0; w < 16; ++w) index->add_rank({w, 0});
    const double start = Clock::now();
    for (const Prompt& prompt : prompts()) store(*index, {0, 0}, prompt, kPromptBlocks);
    state.SetIterationTime(Clock::now() - start);
    filled_index() = std::move(index);
  }
  state.counters["ns_per_block"] = benchmark::Counter(
      kBlocks * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(insert_index)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

// As the plain table is: of its final size before the first block comes.
void insert_presized_index(benchmark::State& state) {
  BlockIndexOptions options;
  options.expected_blocks = kBlocks;
  for (auto _ : state) {
    BlockIndex index(options);
    index.add_rank({0, 0});
    const double start = Clock::now();
    for (const Prompt& prompt : prompts()) store(index, {0, 0}, prompt, kPromptBlocks);
    state.SetIterationTime(Clock::now() - start);
  }
  state.counters["ns_per_block"] = benchmark::Counter(
      kBlocks * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(insert_presized_index)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

// Without engine hashes: one table, as the plain one.
void insert_predictions(benchmark::State& state) {
  BlockIndexOptions options;
  options.expected_blocks = state.range(0) != 0 ? kBlocks : 0;
  for (auto _ : state) {
    BlockIndex index(options);
    index.add_rank({0, 0});
    const double start = Clock::now();
    for (const Prompt& prompt : prompts()) index.predict({0, 0}, prompt.sequence, {});
    state.SetIterationTime(Clock::now() - start);
  }
  state.counters["ns_per_block"] = benchmark::Counter(
      kBlocks * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(insert_predictions)
    ->ArgName("presized")
    ->Arg(0)
    ->Arg(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(3);

std::unique_ptr<PlainTable>& filled_table() {
  static std::unique_ptr<PlainTable> table;
  return table;
}

void insert_plain_table(benchmark::State& state) {
  prompts();
  for (auto _ : state) {
    auto table = std::make_unique<PlainTable>(23);
    const double start = Clock::now();
    for (const Prompt& prompt : prompts()) {
      for (const std::uint64_t hash : prompt.sequence) table->insert(hash, 0);
    }
    state.SetIterationTime(Clock::now() - start);
    filled_table() = std::move(table);
  }
  state.counters["ns_per_block"] = benchmark::Counter(
      kBlocks * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(insert_plain_table)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

// Whole prompts in random order, 64 blocks each; and only first blocks, where the fixed cost of a match
// shows.
void find_index(benchmark::State& state) {
  if (filled_index() == nullptr) return state.SkipWithError("needs insert_index before it");
  const auto blocks = static_cast<std::size_t>(state.range(0));
  const auto order = shuffled_prompts();
  OverlapScores scores;
  std::size_t next = 0;
  for (auto _ : state) {
    const auto& sequence = prompts()[order[next++ % kPrompts]].sequence;
    filled_index()->match_prefix(std::span(sequence).first(blocks), {}, scores);
    benchmark::DoNotOptimize(scores.rows().data());
  }
  state.counters["ns_per_block"] =
      benchmark::Counter(static_cast<double>(blocks) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(find_index)->ArgName("blocks")->Arg(kPromptBlocks)->Arg(1);

void find_plain_table(benchmark::State& state) {
  if (filled_table() == nullptr) return state.SkipWithError("needs insert_plain_table before it");
  const auto blocks = static_cast<std::size_t>(state.range(0));
  const auto order = shuffled_prompts();
  std::size_t next = 0;
  for (auto _ : state) {
    const auto& sequence = prompts()[order[next++ % kPrompts]].sequence;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < blocks; ++i) sum += filled_table()->find(sequence[i]);
    benchmark::DoNotOptimize(sum);
  }
  state.counters["ns_per_block"] =
      benchmark::Counter(static_cast<double>(blocks) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(find_plain_table)->ArgName("blocks")->Arg(kPromptBlocks)->Arg(1);

// --- X3: hashing
// --------------------------------------------------------------------------------------------------------------

std::vector<std::uint32_t> tokens() {
  std::vector<std::uint32_t> made(60'000);
  std::iota(made.begin(), made.end(), 1U);
  return made;
}

void hash_chained(benchmark::State& state) {
  const auto text = tokens();
  RequestHashes hashes;
  for (auto _ : state) {
    hash_request(text, static_cast<std::uint32_t>(state.range(0)), {}, hashes);
    benchmark::DoNotOptimize(hashes.sequence.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size() * 4));
}
BENCHMARK(hash_chained)->ArgName("tokens")->Arg(16)->Arg(64)->Arg(128)->Unit(benchmark::kMicrosecond);

// XXH3 of every block on its own, results added up: what any block hashing has to do at least.
void hash_one_shot(benchmark::State& state) {
  const auto text = tokens();
  const auto block = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i + block <= text.size(); i += block) {
      sum += XXH3_64bits_withSeed(text.data() + i, block * 4, 1337);
    }
    benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size() * 4));
}
BENCHMARK(hash_one_shot)->ArgName("tokens")->Arg(16)->Arg(64)->Arg(128)->Unit(benchmark::kMicrosecond);

// --- X2: memory, by what the process grows --------------------------------------------------------------

struct Memory {
  double per_block = 0;
  double per_shared_holder = 0;
  double per_random_holder = 0;
};

// Needs a fresh process: memory that was freed before would be used again and not show.
Memory measure_memory() {
  Memory memory;
  std::mt19937_64 random(6);
  const auto grown = [](std::size_t before) {
    return static_cast<double>(resident_bytes()) - static_cast<double>(before);
  };
  {
    BlockIndex index;
    for (std::uint64_t w = 0; w < 8; ++w) index.add_rank({w, 0});
    std::size_t before = resident_bytes();
    for (std::uint64_t id = 0; id < kPrompts; ++id)
      store(index, {0, 0}, make_prompt(id, kPromptBlocks), kPromptBlocks);
    memory.per_block = grown(before) / kBlocks;
    // Prompts are cached whole: each further worker holds a random half of them.
    before = resident_bytes();
    std::size_t held = 0;
    for (std::uint64_t w = 1; w < 8; ++w) {
      for (std::uint64_t id = 0; id < kPrompts; ++id) {
        if (random() % 2 == 0) continue;
        store(index, {w, 0}, make_prompt(id, kPromptBlocks), kPromptBlocks);
        held += kPromptBlocks;
      }
    }
    memory.per_shared_holder = std::max(grown(before) / static_cast<double>(held), 0.01);
  }
  // The worst case: no two blocks with the same holders, eight of 96.
  constexpr std::uint64_t kScatteredWorkers = 96;
  constexpr std::size_t kFurther = 7;
  BlockIndex index;
  for (std::uint64_t w = 0; w < kScatteredWorkers; ++w) index.add_rank({w, 0});
  std::vector<std::uint64_t> blocks(500'000);
  for (std::uint64_t& block : blocks) block = random();
  const auto hold = [&](std::uint64_t worker, const std::uint64_t& block) {
    index.apply_stored({worker, 0}, Tier::device, {std::nullopt, {&block, 1}, {&block, 1}});
  };
  for (const std::uint64_t& block : blocks) hold(0, block);
  const std::size_t before = resident_bytes();
  for (const std::uint64_t& block : blocks) {
    for (std::size_t i = 0; i < kFurther; ++i) hold(1 + i * 13 + random() % 13, block);
  }
  const std::size_t held = blocks.size() * kFurther;
  memory.per_random_holder = grown(before) / static_cast<double>(held);
  return memory;
}

Memory measure_memory_in_child() {
  int ends[2];
  Memory memory;
  if (pipe(ends) != 0) return memory;
  const pid_t child = fork();
  if (child == 0) {
    memory = measure_memory();
    const bool written = write(ends[1], &memory, sizeof(memory)) == sizeof(memory);
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  if (read(ends[0], &memory, sizeof(memory)) != sizeof(memory)) memory = Memory{};
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return memory;
}

// --- the ratios
// ---------------------------------------------------------------------------------------------------------------

class RatioReporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (!run.error_occurred) {
        // Manual times are CPU times already; real ones are meant to be real.
        const bool manual = run.benchmark_name().find("manual_time") != std::string::npos ||
                            run.benchmark_name().find("real_time") != std::string::npos;
        times_[run.benchmark_name()] = manual ? run.GetAdjustedRealTime() : run.GetAdjustedCPUTime();
      }
    }
    for (const Run& run : runs) {
      if (const auto p99 = run.counters.find("p99_us"); p99 != run.counters.end())
        (run.benchmark_name().find("raw") != std::string::npos ? raw_p99_ms_ : event_p99_ms_) =
            p99->second / 1000;
    }
    ConsoleReporter::ReportRuns(runs);
  }

  void print_ratios(const Memory& memory) const {
    std::printf("\n%-58s %10s   %s\n", "ratio", "measured", "goal (must / stretch)");
    ratio("E5 string map / index, cold", "pick_string_map/cold:1/manual_time",
          "pick_index/cold:1/manual_time", "60 / 90");
    ratio("E5 string map / index, warm", "pick_string_map/cold:0/manual_time",
          "pick_index/cold:0/manual_time", "- / 400");
    ratio("X1 find, 64-block prompts / plain table", "find_index/blocks:64", "find_plain_table/blocks:64",
          "2.0 / 1.3");
    ratio("X1 find, single blocks / plain table", "find_index/blocks:1", "find_plain_table/blocks:1", "-");
    const std::string plain = "insert_plain_table/iterations:3/manual_time";
    ratio("X1 insert, events (two tables) / plain table", "insert_presized_index/iterations:3/manual_time",
          plain, "3.0 / 2.0");
    ratio("X1 insert, predictions (one table) / plain table",
          "insert_predictions/presized:1/iterations:3/manual_time", plain, "3.0 / 2.0");
    ratio("X1 insert, events, growing / plain table", "insert_index/iterations:3/manual_time", plain, "-");
    ratio("X1 insert, predictions, growing / plain table",
          "insert_predictions/presized:0/iterations:3/manual_time", plain, "-");
    value("X2 bytes per block, one holder", memory.per_block, "48 / 36");
    value("X2 bytes per further holder, whole prompts", memory.per_shared_holder, "8 / 1");
    value("X2 bytes per further holder, each block its own", memory.per_random_holder, "8 / 1");
    for (const char* size : {"16", "64", "128"}) {
      const std::string chained = "hash_chained/tokens:" + std::string(size);
      ratio((std::string("X3 chained / one-shot, library call, tokens: ") + size).c_str(), chained,
            "hash_library/tokens:" + std::string(size), "1.3 / 1.1");
      ratio((std::string("X3 chained / one-shot, inlined, tokens: ") + size).c_str(), chained,
            "hash_one_shot/tokens:" + std::string(size), "-");
    }
    ratio("K1 feed / raw messages per second, 256 B", "ingest_raw/1/200000/iterations:3/manual_time",
          "ingest_feed/1/200000/iterations:3/manual_time", "0.5 / 0.75");
    ratio("K1 feed / raw messages per second, 4 KB", "ingest_raw/60/40000/iterations:3/manual_time",
          "ingest_feed/60/40000/iterations:3/manual_time", "0.5 / 0.75");
    value("K2 event to visible at 10,000/s, p99 in ms", event_p99_ms_, "2 / 0.5");
    value("K2 the same of a bare ZMQ message", raw_p99_ms_, "-");
  }

 private:
  void ratio(const char* what, const std::string& top, const std::string& bottom, const char* goal) const {
    const auto a = times_.find(top);
    const auto b = times_.find(bottom);
    if (a != times_.end() && b != times_.end()) value(what, a->second / b->second, goal);
  }
  static void value(const char* what, double number, const char* goal) {
    if (number != 0) std::printf("%-58s %10.2f   %s\n", what, number, goal);
  }

  std::map<std::string, double> times_;
  double event_p99_ms_ = 0;
  double raw_p99_ms_ = 0;
};

}  // namespace
}  // namespace handoff::epp::bench

int main(int argc, char** argv) {
  const bool is_filtered = argc > 1;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  // By far the longest part; left out where something else is asked for.
  const auto memory =
      is_filtered ? handoff::epp::bench::Memory{} : handoff::epp::bench::measure_memory_in_child();
  handoff::epp::bench::RatioReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  reporter.print_ratios(memory);
}
