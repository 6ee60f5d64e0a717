#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "tests/unit/epp/kv_index/index_model.hpp"
#include "tests/unit/epp/kv_index/test_seed.hpp"

namespace handoff::epp {
namespace {

using test::IndexModel;

constexpr SteadyTime kNow{};

// A history like an engine's: prompts from a tree with much sharing, blocks of it stored, copied, removed,
// ranks coming and going. Some ranks agree on engine hashes, some have their own.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed) {}

  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_); }
  bool chance(unsigned percent) { return pick(100) < percent; }

  WorkerRank rank() { return {pick(kWorkers), static_cast<std::uint32_t>(pick(2))}; }
  Tier tier() { return chance(60) ? Tier::device : static_cast<Tier>(pick(kTierCount)); }

  // A path in a tree of small fan-out, as local hashes.
  std::vector<std::uint64_t> prompt() {
    std::vector<std::uint64_t> locals(1 + pick(12));
    for (std::size_t i = 0; i < locals.size(); ++i) locals[i] = 1 + pick(i < 2 ? 2 : 3);
    return locals;
  }

  static std::vector<std::uint64_t> sequence(const std::vector<std::uint64_t>& locals) {
    std::vector<std::uint64_t> hashes;
    for (const std::uint64_t local : locals) {
      hashes.push_back(hashes.empty() ? local : chain_hash(hashes.back(), local));
    }
    return hashes;
  }

  // Ranks of even workers share one engine configuration; the others hash with a seed of their own.
  static std::uint64_t engine_hash(WorkerRank rank, std::uint64_t prefix) {
    const std::uint64_t engine = rank.worker % 2 == 0 ? 7 : 1000 + rank.worker * 10 + rank.rank;
    return chain_hash(engine, prefix);
  }

  static constexpr std::size_t kWorkers = 6;

 private:
  std::mt19937_64 random_;
};

std::map<WorkerRank, IndexModel::Depths> as_map(const OverlapScores& scores) {
  std::map<WorkerRank, IndexModel::Depths> result;
  for (const RankOverlap& row : scores.rows()) {
    result[row.rank] = {row.device, row.host, row.disk, row.external};
    EXPECT_EQ(scores.find(row.slot, row.rank), &row);
    EXPECT_EQ(scores.find(row.rank), &row);
  }
  return result;
}

void run_history(std::uint64_t seed, std::size_t steps, BlockIndexOptions options) {
  SCOPED_TRACE("HANDOFF_TEST_SEED=" + std::to_string(seed));
  History history(seed);
  BlockIndex index(options);
  IndexModel model;
  OverlapScores scores;
  for (std::size_t step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const WorkerRank rank = history.rank();
    const auto locals = history.prompt();
    const auto prefixes = History::sequence(locals);
    std::vector<std::uint64_t> engine;
    for (const std::uint64_t prefix : prefixes) engine.push_back(History::engine_hash(rank, prefix));
    const std::size_t from = history.pick(locals.size());
    const std::vector<std::uint64_t> some(engine.begin() + static_cast<std::ptrdiff_t>(from), engine.end());
    const Tier tier = history.tier();
    const std::size_t action = history.pick(100);
    if (action < 4) {
      EXPECT_TRUE(index.add_rank(rank).has_value());
      model.add_rank(rank);
    } else if (action < 5) {
      index.remove_rank(rank);
      model.remove_rank(rank);
    } else if (action < 7) {
      index.clear_rank(rank);
      model.clear_rank(rank);
    } else if (action < 50) {
      StoredBlocks blocks;
      if (from != 0) blocks.parent_engine_hash = engine[from - 1];
      blocks.engine_hashes = some;
      blocks.local_hashes = std::span(locals).subspan(from);
      ASSERT_EQ(index.apply_stored(rank, tier, blocks), model.store(rank, tier, blocks));
    } else if (action < 55) {
      ASSERT_EQ(index.apply_removed(rank, tier, some), model.remove(rank, tier, some));
    } else if (action < 62) {
      const std::vector<std::uint64_t> one = {some[0]};
      ASSERT_EQ(index.apply_removed(rank, tier, one), model.remove(rank, tier, one));
    } else if (action < 63) {
      index.maintain(kNow);
    } else {
      index.match_prefix(prefixes, kNow, scores);
      ASSERT_EQ(as_map(scores), model.match(prefixes));
      EXPECT_EQ(scores.requested_blocks(), prefixes.size());
    }
  }
  // What is scrubbed lazily must be gone once upkeep had its turn: no ghost of a removed rank stays.
  for (int i = 0; i < 4; ++i) index.maintain(kNow);
  EXPECT_EQ(index.stats().blocks, model.blocks());
}

TEST(BlockIndexProperty, AgreesWithTheModelOverRandomHistories) {
  const std::uint64_t seed = test::test_seed();
  std::printf("HANDOFF_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  for (std::uint64_t i = 0; i < 20; ++i) run_history(seed + i, 5000, {});
}

TEST(BlockIndexProperty, AgreesWithOneShardOnly) {
  const std::uint64_t seed = test::test_seed();
  std::printf("HANDOFF_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  BlockIndexOptions options;
  options.shards = 1;
  for (std::uint64_t i = 0; i < 5; ++i) run_history(seed + 1000 + i, 5000, options);
}

}  // namespace
}  // namespace handoff::epp
