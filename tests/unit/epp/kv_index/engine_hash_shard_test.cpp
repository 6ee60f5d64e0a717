#include "epp/kv_index/engine_hash_shard.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/epp/kv_index/test_seed.hpp"

namespace handoff::epp {
namespace {

using Added = EngineHashShard::Added;

struct Shard {
  Shard(std::size_t max_size, std::size_t buckets) {
    shard.open(epochs, max_size, TableMemory(buckets * sizeof(EngineHashShard::Bucket)));
  }
  ReadEpochs epochs;
  EngineHashShard shard;
};

std::multiset<BlockKey> found(const EngineHashShard& shard, EngineKey engine) {
  const EngineHashShard::Found found = shard.find(engine);
  return {found.blocks, found.blocks + found.count};
}

// Few different homes, so that buckets overflow, also over the end of the table, and removals have to pull
// back what lies far behind.
TEST(EngineHashShard, HoldsWhatAModelHolds) {
  const std::uint64_t seed = test::test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    Shard fixture(1'000'000, 2 + random() % 6);
    EngineHashShard& shard = fixture.shard;
    std::map<EngineKey, std::set<BlockKey>> model;
    std::size_t size = 0;
    const std::uint64_t homes = 1 + random() % 8;
    const auto some_engine = [&] { return (random() % homes) << 29 | random() % 16; };
    for (int step = 0; step < 600; ++step) {
      const EngineKey engine = some_engine();
      const BlockKey block = 1 + random() % 12;
      std::set<BlockKey>& blocks = model[engine];
      // Fills up, then empties.
      if (random() % 10 < (step < 300 ? 7U : 3U)) {
        if (!shard.has_room()) shard.grow();
        const Added added = shard.add(engine, block);
        if (blocks.count(block) != 0) {
          EXPECT_EQ(added, Added::present);
        } else if (blocks.size() >= EngineHashShard::kMaxBlocksPerHash) {
          EXPECT_EQ(added, Added::too_many);
        } else {
          EXPECT_EQ(added, Added::added);
          blocks.insert(block);
          ++size;
        }
      } else {
        const bool was_there = blocks.erase(block) != 0;
        EXPECT_EQ(shard.erase(engine, block), was_there);
        size -= was_there ? 1 : 0;
      }
      ASSERT_EQ(shard.size(), size);
      if (step % 50 == 0) {
        for (const auto& [key, expected] : model)
          ASSERT_EQ(found(shard, key), std::multiset<BlockKey>(expected.begin(), expected.end())) << step;
      }
    }
    shard.purge([](EngineKey, BlockKey block) { return block % 2 == 0; });
    for (const auto& [key, expected] : model) {
      std::multiset<BlockKey> kept;
      std::copy_if(expected.begin(), expected.end(), std::inserter(kept, kept.end()),
                   [](BlockKey block) { return block % 2 == 0; });
      ASSERT_EQ(found(shard, key), kept);
    }
  }
}

TEST(EngineHashShard, SaysWhenAHashStandsForManyBlocks) {
  Shard fixture(1'000'000, 2);
  EngineHashShard& shard = fixture.shard;
  constexpr EngineKey kEngine = 5;
  for (BlockKey block = 1; block <= EngineHashShard::kMaxBlocksPerHash + 10; ++block) {
    if (!shard.has_room()) shard.grow();
    const Added expected = block <= EngineHashShard::kManyBlocksPerHash  ? Added::added
                           : block <= EngineHashShard::kMaxBlocksPerHash ? Added::added_to_many
                                                                         : Added::too_many;
    ASSERT_EQ(shard.add(kEngine, block), expected) << block;
  }
  EXPECT_EQ(shard.add(kEngine, 1), Added::present);
  EXPECT_EQ(shard.add(kEngine + 1, 1), Added::added) << "the next one's affair is its own";
  EXPECT_EQ(shard.find(kEngine).count, EngineHashShard::kMaxBlocksPerHash);
  for (BlockKey block = 1; block <= EngineHashShard::kMaxBlocksPerHash; ++block) {
    ASSERT_TRUE(shard.erase(kEngine, block));
  }
  EXPECT_EQ(shard.size(), 1u);
}

TEST(EngineHashShard, SaysWhenItIsAtItsLimit) {
  Shard fixture(5, 2);
  for (EngineKey engine = 1; engine <= 5; ++engine) {
    EXPECT_FALSE(fixture.shard.at_limit());
    ASSERT_TRUE(fixture.shard.has_room());
    fixture.shard.add(engine, engine);
  }
  EXPECT_TRUE(fixture.shard.at_limit());
  EXPECT_FALSE(fixture.shard.has_room());
  // Each victim another entry.
  std::set<EngineKey> victims;
  for (int i = 0; i < 5; ++i) victims.insert(fixture.shard.next_victim().engine);
  EXPECT_EQ(victims.size(), 5u);
}

}  // namespace
}  // namespace handoff::epp
