#include "epp/kv_index/block_index.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "tests/unit/epp/kv_index/index_fixture.hpp"

namespace handoff::epp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::device_depth;
using test::Prompt;

constexpr WorkerRank kA{1, 0};
constexpr WorkerRank kB{2, 0};
constexpr SteadyTime kStart{};

class BlockIndexTest : public testing::Test {
 protected:
  BlockIndexTest() {
    index_.add_rank(kA);
    index_.add_rank(kB);
  }

  RankOverlap match(const std::vector<std::uint64_t>& request, WorkerRank rank, SteadyTime now = kStart) {
    index_.match_prefix(request, now, scores_);
    const RankOverlap* row = scores_.find(rank);
    return row == nullptr ? RankOverlap{} : *row;
  }

  BlockIndex index_;
  OverlapScores scores_;
  const Prompt prompt_{1, 8};
};

TEST_F(BlockIndexTest, FindsNothingInAnEmptyIndex) {
  index_.match_prefix(prompt_.sequence, kStart, scores_);
  EXPECT_TRUE(scores_.rows().empty());
  index_.match_prefix({}, kStart, scores_);
  EXPECT_TRUE(scores_.rows().empty());
  EXPECT_EQ(scores_.requested_blocks(), 0u);
}

TEST_F(BlockIndexTest, ScoresEachRankByItsLongestPrefix) {
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.all()), StoreOutcome::applied);
  EXPECT_EQ(index_.apply_stored(kB, Tier::device, prompt_.slice(0, 3)), StoreOutcome::applied);
  EXPECT_EQ(match(prompt_.sequence, kA).device, 8u);
  EXPECT_EQ(match(prompt_.sequence, kB).device, 3u);
  EXPECT_EQ(scores_.rows().size(), 2u);
}

// A rank drops out at the first block it lacks, whatever it holds behind it.
TEST_F(BlockIndexTest, MatchesOnlyContiguousPrefixes) {
  index_.apply_stored(kA, Tier::device, prompt_.all());
  EXPECT_EQ(index_.apply_removed(kA, Tier::device, std::span(prompt_.engine).subspan(4, 1)), 1u);
  EXPECT_EQ(match(prompt_.sequence, kA).device, 4u);
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.slice(4, 1)), StoreOutcome::applied);
  EXPECT_EQ(match(prompt_.sequence, kA).device, 8u);
}

TEST_F(BlockIndexTest, GrowsAPromptBehindItsParent) {
  index_.apply_stored(kA, Tier::device, prompt_.slice(0, 2));
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.slice(2, 6)), StoreOutcome::applied);
  EXPECT_EQ(match(prompt_.sequence, kA).device, 8u);
}

TEST_F(BlockIndexTest, RejectsAStoreBehindAnUnknownParent) {
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.slice(2, 2)), StoreOutcome::unknown_parent);
  // That another rank holds the parent does not help: the event speaks of this rank's cache.
  index_.apply_stored(kB, Tier::device, prompt_.all());
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.slice(2, 2)), StoreOutcome::unknown_parent);
  EXPECT_EQ(index_.stats().unknown_parents, 2u);
  EXPECT_EQ(match(prompt_.sequence, kA).device, 0u);
}

TEST_F(BlockIndexTest, TakesTheSameStoreTwice) {
  index_.apply_stored(kA, Tier::device, prompt_.all());
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.all()), StoreOutcome::already_stored);
  EXPECT_EQ(index_.stats().duplicate_stores, 1u);
  EXPECT_EQ(index_.stats().blocks, 8u);
}

TEST_F(BlockIndexTest, DropsAWholeStoreThatNamesAHashTwice) {
  std::vector<std::uint64_t> twice = prompt_.engine;
  twice[5] = twice[2];
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, {std::nullopt, twice, prompt_.local}),
            StoreOutcome::malformed);
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, {prompt_.engine[3], prompt_.engine, prompt_.local}),
            StoreOutcome::malformed);
  const Prompt large(9, 100);
  twice = large.engine;
  twice[99] = twice[0];
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, {std::nullopt, twice, large.local}),
            StoreOutcome::malformed);
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, {std::nullopt, prompt_.engine, large.local}),
            StoreOutcome::malformed);
  EXPECT_EQ(index_.stats().blocks, 0u);
  EXPECT_EQ(index_.stats().malformed_stores, 4u);
}

TEST_F(BlockIndexTest, CountsRemovalsOfBlocksItNeverSaw) {
  EXPECT_EQ(index_.apply_removed(kA, Tier::device, prompt_.engine), 0u);
  index_.apply_stored(kA, Tier::host, prompt_.all());
  EXPECT_EQ(index_.apply_removed(kA, Tier::device, prompt_.engine), 0u);  // held, but not in that tier
  EXPECT_EQ(index_.stats().unknown_removals, 16u);
}

// Each lower tier extends where the one before it ended.
TEST_F(BlockIndexTest, ExtendsAPrefixThroughTheTiers) {
  index_.apply_stored(kA, Tier::device, prompt_.slice(0, 2));
  index_.apply_stored(kA, Tier::host, prompt_.slice(2, 3));
  index_.apply_stored(kA, Tier::disk, prompt_.slice(5, 1));
  index_.apply_stored(kA, Tier::external, prompt_.slice(6, 2));
  const RankOverlap overlap = match(prompt_.sequence, kA);
  EXPECT_EQ(overlap.device, 2u);
  EXPECT_EQ(overlap.host, 3u);
  EXPECT_EQ(overlap.disk, 1u);
  EXPECT_EQ(overlap.external, 2u);
  EXPECT_EQ(overlap.total(), 8u);
}

TEST_F(BlockIndexTest, StartsInALowerTierWhenTheDeviceHasNoRoot) {
  index_.apply_stored(kA, Tier::host, prompt_.slice(0, 4));
  EXPECT_EQ(match(prompt_.sequence, kA).device, 0u);
  EXPECT_EQ(match(prompt_.sequence, kA).host, 4u);
}

// The tiers are walked in order and never back.
TEST_F(BlockIndexTest, DoesNotReturnToAFasterTier) {
  index_.apply_stored(kA, Tier::device, prompt_.all());
  index_.apply_stored(kA, Tier::host, prompt_.slice(0, 4));
  index_.apply_removed(kA, Tier::device, std::span(prompt_.engine).subspan(2, 1));
  const RankOverlap overlap = match(prompt_.sequence, kA);
  EXPECT_EQ(overlap.device, 2u);
  EXPECT_EQ(overlap.host, 2u);  // blocks 2 and 3; block 4 is on the device only
  EXPECT_EQ(overlap.total(), 4u);
}

TEST_F(BlockIndexTest, KeepsABlockThatLeavesOneOfItsTiers) {
  index_.apply_stored(kA, Tier::device, prompt_.all());
  EXPECT_EQ(index_.apply_copied(kA, Tier::host, prompt_.engine), 8u);
  index_.apply_removed(kA, Tier::device, prompt_.engine);
  EXPECT_EQ(match(prompt_.sequence, kA).host, 8u);
  index_.apply_removed(kA, Tier::host, prompt_.engine);
  EXPECT_EQ(match(prompt_.sequence, kA).total(), 0u);
  EXPECT_EQ(index_.stats().blocks, 0u);
  EXPECT_EQ(index_.stats().engine_hashes, 0u);
}

// A store without tokens says where known blocks are; of unknown ones it says nothing we could use.
TEST_F(BlockIndexTest, CopiesOnlyBlocksWhoseContentIsKnown) {
  EXPECT_EQ(index_.apply_copied(kA, Tier::host, prompt_.engine), 0u);
  index_.apply_stored(kA, Tier::device, prompt_.slice(0, 3));
  EXPECT_EQ(index_.apply_copied(kA, Tier::host, prompt_.engine), 3u);
  EXPECT_EQ(index_.apply_copied({77, 0}, Tier::host, prompt_.engine), 0u);
}

// The copy may be announced after the device gave the block up, and another rank still tells what the hash
// means.
TEST_F(BlockIndexTest, LearnsACopiedBlockFromAnotherRank) {
  index_.apply_stored(kB, Tier::device, prompt_.all());
  EXPECT_EQ(index_.apply_copied(kA, Tier::host, prompt_.engine), 8u);
  EXPECT_EQ(match(prompt_.sequence, kA).host, 8u);
}

TEST_F(BlockIndexTest, ClearsARankInEveryTier) {
  index_.apply_stored(kA, Tier::device, prompt_.slice(0, 4));
  index_.apply_stored(kA, Tier::host, prompt_.slice(4, 4));
  index_.apply_stored(kB, Tier::device, prompt_.all());
  index_.predict(kA, prompt_.sequence, kStart);
  EXPECT_TRUE(index_.clear_rank(kA));
  EXPECT_EQ(match(prompt_.sequence, kA).total(), 0u);
  EXPECT_EQ(match(prompt_.sequence, kB).device, 8u);
  EXPECT_EQ(index_.apply_removed(kA, Tier::device, prompt_.engine), 0u);
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.slice(1, 1)), StoreOutcome::unknown_parent);
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.slice(0, 2)), StoreOutcome::applied);
  EXPECT_EQ(match(prompt_.sequence, kA).device, 2u);
}

TEST_F(BlockIndexTest, RemovesAllRanksOfAWorker) {
  index_.add_rank({1, 1});
  index_.apply_stored(kA, Tier::device, prompt_.all());
  index_.apply_stored({1, 1}, Tier::device, prompt_.all());
  index_.apply_stored(kB, Tier::device, prompt_.all());
  EXPECT_EQ(index_.remove_worker(1), 2u);
  index_.match_prefix(prompt_.sequence, kStart, scores_);
  ASSERT_EQ(scores_.rows().size(), 1u);
  EXPECT_EQ(scores_.rows()[0].rank, kB);
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, prompt_.all()), StoreOutcome::unknown_rank);
  EXPECT_FALSE(index_.remove_rank(kA));
  EXPECT_FALSE(index_.clear_rank(kA));
}

TEST_F(BlockIndexTest, ASlotThatChangedHandsDoesNotAnswerForItsOldRank) {
  const RankSlot slot = index_.slot_of(kA).value();
  index_.remove_rank(kA);
  EXPECT_EQ(index_.slot_of(kA), std::nullopt);
  ASSERT_EQ(index_.add_rank({3, 0}), slot);
  index_.apply_stored({3, 0}, Tier::device, prompt_.all());
  index_.match_prefix(prompt_.sequence, kStart, scores_);
  EXPECT_EQ(scores_.find(slot, kA), nullptr);
  ASSERT_NE(scores_.find(slot, {3, 0}), nullptr);
  EXPECT_EQ(scores_.find(9999, kA), nullptr);
}

// SGLang leaves salt and adapter out of its hash, so one hash may stand for several blocks, of one rank too.
TEST_F(BlockIndexTest, OneEngineHashMayStandForSeveralBlocks) {
  Prompt salted(2, 8);
  salted.engine = prompt_.engine;
  index_.apply_stored(kA, Tier::device, prompt_.all());
  EXPECT_EQ(index_.apply_stored(kB, Tier::device, salted.all()), StoreOutcome::applied);
  EXPECT_EQ(match(prompt_.sequence, kA).device, 8u);
  EXPECT_EQ(match(salted.sequence, kB).device, 8u);
  // Each rank's removal is about the block that it holds.
  index_.apply_removed(kB, Tier::device, salted.engine);
  EXPECT_EQ(match(prompt_.sequence, kA).device, 8u);
  EXPECT_EQ(match(salted.sequence, kB).device, 0u);
  // A rank that holds both loses both: claiming too little is the safe side. A parent that is two blocks is
  // none.
  index_.apply_stored(kA, Tier::device, salted.slice(0, 2));
  EXPECT_EQ(index_.apply_stored(kA, Tier::device, salted.slice(2, 1)), StoreOutcome::ambiguous_parent);
  index_.apply_removed(kA, Tier::device, std::span(prompt_.engine).first(1));
  EXPECT_EQ(match(prompt_.sequence, kA).device, 0u);
  EXPECT_EQ(match(salted.sequence, kA).device, 0u);
}

// Whoever takes too many contents for a hash is refused further ones; the others still have theirs.
TEST_F(BlockIndexTest, BoundsHowManyBlocksOneEngineHashMayStandFor) {
  const std::vector<std::uint64_t> hash = {42};
  const auto store = [&](WorkerRank rank, std::uint64_t content) {
    return index_.apply_stored(rank, Tier::device, {std::nullopt, hash, std::vector<std::uint64_t>{content}});
  };
  StoreOutcome last = StoreOutcome::applied;
  for (std::uint64_t content = 0; content < 100; ++content) last = store(kA, 1000 + content);
  EXPECT_EQ(last, StoreOutcome::conflicting_hash);
  EXPECT_EQ(index_.stats().blocks, 64u);
  EXPECT_EQ(index_.stats().conflicting_hashes, 36u);
  for (std::uint64_t content = 0; content < 20; ++content) {
    EXPECT_EQ(store(kB, 2000 + content), StoreOutcome::applied);
    EXPECT_EQ(match({2000 + content}, kB).device, 1u);
  }
  EXPECT_EQ(index_.apply_removed(kB, Tier::device, hash), 1u);
  EXPECT_EQ(match({2000}, kB).device, 0u);
  EXPECT_EQ(match({1000}, kA).device, 1u);
}

TEST_F(BlockIndexTest, PredictionsLastTheirTimeToLive) {
  BlockIndexOptions options;
  options.predicted_ttl = seconds(120);
  BlockIndex index(options);
  index.add_rank(kA);
  ASSERT_TRUE(index.predict(kA, prompt_.sequence, kStart + seconds(7)));
  EXPECT_EQ(device_depth(index, prompt_.sequence, kA, kStart + seconds(7)), 8u);
  EXPECT_EQ(device_depth(index, prompt_.sequence, kA, kStart + seconds(127)), 8u);
  EXPECT_EQ(device_depth(index, prompt_.sequence, kA, kStart + seconds(7 + 150)),
            0u);  // a quarter more at the most
  index.maintain(kStart + seconds(157));
  index.maintain(kStart + seconds(157));
  EXPECT_EQ(index.stats().blocks, 0u);
}

TEST_F(BlockIndexTest, UsingAPredictionAgainRenewsIt) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(index_.predict(kA, std::span(prompt_.sequence).first(4), kStart + seconds(60 * i)));
  }
  index_.predict(kA, prompt_.sequence, kStart);
  EXPECT_EQ(match(prompt_.sequence, kA, kStart + seconds(540 + 119)).device, 4u);
  EXPECT_EQ(match(prompt_.sequence, kA, kStart + seconds(540 + 150)).device, 0u);
}

// A prefix may be partly old news, partly from the last request: it counts as one.
TEST_F(BlockIndexTest, JoinsPredictionsOfDifferentAges) {
  index_.predict(kA, std::span(prompt_.sequence).first(4), kStart + seconds(100));
  index_.predict(kA, std::span(prompt_.sequence).subspan(4), kStart);
  index_.apply_stored(kB, Tier::device, prompt_.slice(0, 2));
  index_.predict(kB, std::span(prompt_.sequence).subspan(2), kStart);
  EXPECT_EQ(match(prompt_.sequence, kA, kStart + seconds(101)).device, 8u);
  EXPECT_EQ(match(prompt_.sequence, kB, kStart + seconds(101)).device, 8u);
  EXPECT_EQ(match(prompt_.sequence, kA, kStart + seconds(151)).device, 4u);
  EXPECT_EQ(match(prompt_.sequence, kB, kStart + seconds(151)).device, 2u);
}

TEST_F(BlockIndexTest, WithoutATimeToLiveNothingIsPredicted) {
  BlockIndexOptions options;
  options.predicted_ttl = milliseconds(0);
  BlockIndex index(options);
  index.add_rank(kA);
  EXPECT_FALSE(index.predict(kA, prompt_.sequence, kStart));
  EXPECT_EQ(index.stats().blocks, 0u);
  EXPECT_FALSE(index_.predict({9, 9}, prompt_.sequence, kStart));
}

TEST_F(BlockIndexTest, ServesSevenThousandWorkers) {
  constexpr std::uint64_t kWorkers = 7000;
  for (std::uint64_t w = 0; w < kWorkers; ++w) {
    ASSERT_TRUE(index_.add_rank({100 + w, 0}));
    index_.apply_stored({100 + w, 0}, Tier::device, prompt_.slice(0, 1 + w % 8));
    if (w % 2 == 0) index_.apply_stored({100 + w, 0}, Tier::host, prompt_.slice(1 + w % 8, 7 - w % 8));
  }
  index_.match_prefix(prompt_.sequence, kStart, scores_);
  ASSERT_EQ(scores_.rows().size(), kWorkers);
  for (const RankOverlap& row : scores_.rows()) {
    const std::uint64_t w = row.rank.worker - 100;
    EXPECT_EQ(row.device, 1 + w % 8);
    EXPECT_EQ(row.total(), w % 2 == 0 ? 8 : 1 + w % 8);
  }
}

}  // namespace
}  // namespace handoff::epp
