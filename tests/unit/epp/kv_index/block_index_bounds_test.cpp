#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "tests/unit/epp/kv_index/index_fixture.hpp"

// Memory: what bounds it, what happens at the bound, and that churn leaves nothing behind.
namespace handoff::epp {
namespace {

using std::chrono::seconds;
using test::device_depth;
using test::Prompt;

constexpr WorkerRank kA{1, 0};
constexpr SteadyTime kStart{};

TEST(BlockIndexBounds, AtTheBoundNewBlocksReplaceOldOnes) {
  BlockIndexOptions options;
  options.max_blocks = 4096;
  BlockIndex index(options);
  index.add_rank(kA);
  for (std::uint64_t id = 0; id < 1000; ++id) index.apply_stored(kA, Tier::device, Prompt(id, 64).all());
  const BlockIndexStats stats = index.stats();
  EXPECT_LE(stats.blocks, 4096u);
  EXPECT_GE(stats.blocks, 3500u);
  EXPECT_EQ(stats.evicted_blocks, 64'000u - stats.blocks);
  // The hashes of evicted blocks go too, not at once but before they are many.
  EXPECT_LE(stats.engine_hashes, 2 * stats.blocks + 4096);
}

TEST(BlockIndexBounds, WhatIsMatchedOutlivesWhatIsNot) {
  BlockIndexOptions options;
  options.max_blocks = 4096;
  BlockIndex index(options);
  index.add_rank(kA);
  const Prompt hot(1'000'000, 64);
  index.apply_stored(kA, Tier::device, hot.all());
  for (std::uint64_t id = 0; id < 2000; ++id) {
    index.apply_stored(kA, Tier::device, Prompt(id, 16).all());
    device_depth(index, hot.sequence, kA);
  }
  EXPECT_EQ(device_depth(index, hot.sequence, kA), 64u);
  EXPECT_GT(index.stats().evicted_blocks, 20'000u);
}

// Ranks with hashes of their own (random seeds) need an entry per holder; the bound holds for them as well.
TEST(BlockIndexBounds, BoundsTheEngineHashes) {
  BlockIndexOptions options;
  options.max_engine_hashes = 8192;
  BlockIndex index(options);
  for (std::uint64_t w = 0; w < 8; ++w) {
    index.add_rank({w, 0});
    for (std::uint64_t id = 0; id < 200; ++id) {
      Prompt prompt(id, 16);
      for (std::uint64_t& hash : prompt.engine) hash ^= w << 48;
      index.apply_stored({w, 0}, Tier::device, prompt.all());
    }
  }
  EXPECT_LE(index.stats().engine_hashes, 8192u);
  EXPECT_GT(index.stats().evicted_blocks, 0u);
  EXPECT_LE(index.stats().blocks, 3200u);
}

TEST(BlockIndexBounds, RefusesFurtherHoldersWhenTheirSetsTakeTooMuch) {
  BlockIndexOptions options;
  options.max_holder_set_bytes = 4096;
  BlockIndex index(options);
  // Every block gets a set of its own: the ranks that divide its number.
  for (std::uint64_t w = 1; w <= 40; ++w) {
    index.add_rank({w, 0});
    for (std::uint64_t id = w; id < 2000; id += w)
      index.apply_stored({w, 0}, Tier::device, Prompt(id, 1).all());
  }
  const BlockIndexStats stats = index.stats();
  EXPECT_LE(stats.holder_set_bytes, 4096u);
  EXPECT_GT(stats.refused_holders, 0u);
  // Removing what was refused is no fault, and all of it ends empty.
  for (std::uint64_t w = 1; w <= 40; ++w) {
    for (std::uint64_t id = w; id < 2000; id += w)
      index.apply_removed({w, 0}, Tier::device, Prompt(id, 1).engine);
  }
  EXPECT_EQ(index.stats().blocks, 0u);
  EXPECT_EQ(index.stats().holder_sets, 0u);
  EXPECT_EQ(index.stats().holder_set_bytes, 0u);
}

// An engine with a full cache for a long time: each prompt pushes out the oldest one. The index that this one
// replaces grew without end here, because split nodes were never joined again (ai-dynamo/dynamo issue 10774).
void churn(const BlockIndexOptions& options) {
  BlockIndex index(options);
  constexpr std::uint64_t kRanks = 4;
  constexpr std::size_t kCached = 200;
  for (std::uint64_t w = 0; w < kRanks; ++w) index.add_rank({w, 0});
  std::deque<std::pair<WorkerRank, Prompt>> cached;
  std::size_t settled = 0;
  std::size_t most = 0;
  for (std::uint64_t id = 0; id < 40'000; ++id) {
    // A common start, then a turn of its own: the shape that makes trees split.
    Prompt prompt(id % 50, 4 + id % 5);
    const WorkerRank rank{id % kRanks, 0};
    const Prompt tail(1'000'000 + id, 8);
    for (std::size_t i = 0; i < 8; ++i) {
      prompt.local.push_back(tail.local[i]);
      prompt.sequence.push_back(chain_hash(prompt.sequence.back(), tail.local[i]));
      prompt.engine.push_back(chain_hash(0xE, prompt.sequence.back()));
    }
    index.apply_stored(rank, Tier::device, prompt.all());
    cached.emplace_back(rank, std::move(prompt));
    if (cached.size() > kCached) {
      auto& [old_rank, old] = cached.front();
      std::reverse(old.engine.begin(), old.engine.end());  // engines evict from the end
      index.apply_removed(old_rank, Tier::device, old.engine);
      cached.pop_front();
    }
    // The size goes up and down with the load of the tables; compared are its peaks.
    auto& peak = id < 10'000 ? settled : most;
    peak = std::max(peak, index.stats().bytes());
  }
  EXPECT_LE(most, settled + settled / 10);
  EXPECT_LE(index.stats().blocks, kCached * 16);
  while (!cached.empty()) {
    index.apply_removed(cached.front().first, Tier::device, cached.front().second.engine);
    cached.pop_front();
  }
  EXPECT_EQ(index.stats().blocks, 0u);
  EXPECT_EQ(index.stats().engine_hashes, 0u);
  EXPECT_EQ(index.stats().holder_sets, 0u);
}

TEST(BlockIndexBounds, ChurnLeavesNothingBehind) {
  churn({});
}

TEST(BlockIndexBounds, ChurnLeavesNothingBehindWithEngineHashesKept) {
  BlockIndexOptions options;
  options.keeps_engine_hashes = true;
  churn(options);
}

// The same with ranks instead of blocks: restarts and scale-ups must not use anything up.
TEST(BlockIndexBounds, RanksMayComeAndGoForEver) {
  BlockIndex index;
  const Prompt prompt(1, 16);
  for (std::uint64_t w = 0; w < 150'000; ++w) {
    ASSERT_TRUE(index.add_rank({w, 0}));
    ASSERT_EQ(index.apply_stored({w, 0}, Tier::device, prompt.all()), StoreOutcome::applied);
    if (w % 3 == 0) index.clear_rank({w, 0});
    if (w >= 20) {
      ASSERT_TRUE(index.remove_rank({w - 20, 0}));
    }
  }
  EXPECT_EQ(index.stats().ranks, 20u);
  EXPECT_LE(index.stats().ordinals, 65'535u);
  for (int i = 0; i < 3; ++i) index.maintain(kStart);
  EXPECT_LE(index.stats().ordinals, 40u);
  EXPECT_EQ(device_depth(index, prompt.sequence, {149'998, 0}), 16u);
}

TEST(BlockIndexBounds, PredictionsMayComeAndGoForEver) {
  BlockIndex index;
  index.add_rank(kA);
  std::size_t most = 0;
  for (std::uint64_t second = 0; second < 40'000; second += 10) {
    const SteadyTime now = kStart + seconds(second);
    ASSERT_TRUE(index.predict(kA, Prompt(second, 32).sequence, now));
    if (second % 50 == 0) index.maintain(now);
    most = std::max(most, index.stats().blocks);
  }
  // 120 s and a quarter, and until the next upkeep.
  EXPECT_LE(most, 32u * (150 + 60) / 10);
  EXPECT_LE(index.stats().ordinals, 12u);
}

// Made for what is expected it neither grows nor shrinks below that, and holds what comes beyond it, too.
TEST(BlockIndexBounds, HasRoomForWhatIsExpected) {
  BlockIndexOptions options;
  options.expected_blocks = 100'000;
  BlockIndex index(options);
  index.add_rank(kA);
  const std::size_t empty = index.stats().table_bytes;
  // Two tables of 16 bytes an entry.
  EXPECT_GE(empty, 100'000u * 32);
  EXPECT_LE(empty, 100'000u * 48);
  for (std::uint64_t id = 0; id < 3'000; ++id) index.apply_stored(kA, Tier::device, Prompt(id, 32).all());
  EXPECT_EQ(index.stats().blocks, 96'000u);
  EXPECT_EQ(index.stats().table_bytes, empty);
  for (std::uint64_t id = 0; id < 3'000; ++id) {
    EXPECT_EQ(index.apply_removed(kA, Tier::device, Prompt(id, 32).engine), 32u);
  }
  index.maintain(kStart);
  EXPECT_EQ(index.stats().blocks, 0u);
  EXPECT_EQ(index.stats().table_bytes, empty);
  for (std::uint64_t id = 0; id < 10'000; ++id) index.apply_stored(kA, Tier::device, Prompt(id, 32).all());
  EXPECT_EQ(index.stats().blocks, 320'000u);
  EXPECT_EQ(device_depth(index, Prompt(9'999, 32).sequence, kA), 32u);
}

// The same, said later, with blocks already there; and taken back.
TEST(BlockIndexBounds, MakesRoomForWhatIsExpectedLater) {
  BlockIndex index;
  index.add_rank(kA);
  for (std::uint64_t id = 0; id < 300; ++id) index.apply_stored(kA, Tier::device, Prompt(id, 32).all());
  index.expect(100'000);
  const std::size_t made = index.stats().table_bytes;
  EXPECT_GE(made, 100'000u * 32);
  EXPECT_LE(made, 100'000u * 48);
  EXPECT_EQ(index.stats().blocks, 9'600u);
  for (std::uint64_t id = 300; id < 3'000; ++id) index.apply_stored(kA, Tier::device, Prompt(id, 32).all());
  EXPECT_EQ(index.stats().table_bytes, made) << "nothing had to grow";
  for (std::uint64_t id = 0; id < 3'000; ++id) {
    EXPECT_EQ(device_depth(index, Prompt(id, 32).sequence, kA), 32u);
  }
  index.expect(0);
  EXPECT_EQ(index.stats().table_bytes, made);
  for (std::uint64_t id = 0; id < 3'000; ++id) {
    EXPECT_EQ(index.apply_removed(kA, Tier::device, Prompt(id, 32).engine), 32u);
  }
  index.maintain(kStart);
  EXPECT_LE(index.stats().table_bytes, 100'000u);
}

TEST(BlockIndexBounds, ExpectsNoMoreThanItMayHold) {
  BlockIndexOptions options;
  options.max_blocks = 10'000;
  BlockIndex index(options);
  index.expect(SIZE_MAX);
  EXPECT_LE(index.stats().table_bytes, 10'000u * 48);
}

// Both directions of the hashes; the engines' own are told only where there is one for each block.
TEST(BlockIndexBounds, TellsEngineHashesOnlyForSure) {
  BlockIndexOptions options;
  options.keeps_engine_hashes = true;
  BlockIndex index(options);
  const WorkerRank other{2, 0};
  index.add_rank(kA);
  index.add_rank(other);
  const Prompt prompt(1, 8);
  std::vector<std::uint64_t> told;
  EXPECT_FALSE(index.engine_hashes(prompt.sequence, told));
  index.apply_stored(kA, Tier::device, prompt.all());
  ASSERT_TRUE(index.engine_hashes(prompt.sequence, told));
  EXPECT_EQ(told, prompt.engine);
  // The same from another rank changes nothing; another hash for the last block does.
  index.apply_stored(other, Tier::device, prompt.all());
  EXPECT_TRUE(index.engine_hashes(prompt.sequence, told));
  const std::uint64_t strange = 77;
  index.apply_stored(other, Tier::device,
                     {prompt.engine[6], std::span(&strange, 1), std::span(prompt.local).subspan(7)});
  EXPECT_FALSE(index.engine_hashes(prompt.sequence, told));
  EXPECT_TRUE(index.engine_hashes(std::span(prompt.sequence).first(7), told));
  EXPECT_EQ(told.size(), 7u);
  // Whom nobody holds any more nobody can fetch.
  index.apply_removed(kA, Tier::device, prompt.engine);
  index.apply_removed(other, Tier::device, prompt.engine);
  EXPECT_FALSE(index.engine_hashes(std::span(prompt.sequence).first(1), told));

  BlockIndex plain;
  plain.add_rank(kA);
  plain.apply_stored(kA, Tier::device, prompt.all());
  EXPECT_FALSE(plain.engine_hashes(prompt.sequence, told));
}

TEST(BlockIndexBounds, GivesMemoryBackWhenItEmpties) {
  BlockIndex index;
  index.add_rank(kA);
  for (std::uint64_t id = 0; id < 5'000; ++id) index.apply_stored(kA, Tier::device, Prompt(id, 32).all());
  const std::size_t full = index.stats().bytes();
  EXPECT_GT(full, 160'000u * 32);
  index.clear_rank(kA);
  for (int i = 0; i < 4; ++i) index.maintain(kStart);
  EXPECT_EQ(index.stats().blocks, 0u);
  EXPECT_EQ(index.stats().engine_hashes, 0u);
  EXPECT_LT(index.stats().bytes(), full / 20);
}

}  // namespace
}  // namespace handoff::epp
