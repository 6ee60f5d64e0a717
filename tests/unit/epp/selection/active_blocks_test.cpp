#include "epp/selection/active_blocks.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "tests/unit/epp/selection/test_seed.hpp"

namespace handoff::epp {
namespace {

using Hashes = std::vector<std::uint64_t>;
constexpr std::uint64_t kOne = ActiveBlocks::kWholeBlock;

std::vector<std::uint32_t> depths(const ActiveBlocks& blocks, const Hashes& hashes, std::size_t slots) {
  std::vector<std::uint32_t> found(slots, 0);
  blocks.add_prefix_depths(hashes, found);
  return found;
}

TEST(ActiveBlocks, CountsASharedBlockOncePerRank) {
  ActiveBlocks blocks(100);
  auto* first = blocks.acquire(0, Hashes{1, 2, 3});
  auto* second = blocks.acquire(0, Hashes{1, 2, 4, 5});
  auto* elsewhere = blocks.acquire(1, Hashes{1, 2});
  EXPECT_EQ(blocks.weight(0), 5 * kOne);
  EXPECT_EQ(blocks.weight(1), 2 * kOne);
  blocks.release(0, first, kOne);
  EXPECT_EQ(blocks.weight(0), 4 * kOne);
  blocks.release(0, second, kOne);
  blocks.release(1, elsewhere, kOne);
  EXPECT_EQ(blocks.weight(0), 0u);
  EXPECT_EQ(blocks.weight(1), 0u);
  EXPECT_EQ(blocks.stored_blocks(), 0u);
}

TEST(ActiveBlocks, FindsTheContiguousActivePrefixOfEveryRank) {
  ActiveBlocks blocks(100);
  blocks.acquire(0, Hashes{1, 2, 3, 4});
  blocks.acquire(1, Hashes{1, 2});
  blocks.acquire(2, Hashes{9, 2, 3});
  EXPECT_EQ(depths(blocks, {1, 2, 3, 7}, 3), (std::vector<std::uint32_t>{3, 2, 0}));
  EXPECT_EQ(depths(blocks, {1}, 3), (std::vector<std::uint32_t>{1, 1, 0}));
  EXPECT_EQ(depths(blocks, {2, 3}, 3), (std::vector<std::uint32_t>{0, 0, 0}));
  EXPECT_EQ(depths(blocks, {}, 3), (std::vector<std::uint32_t>{0, 0, 0}));
}

TEST(ActiveBlocks, WeighsOnlyWhatARequestOwnsAloneByItsFraction) {
  ActiveBlocks blocks(100);
  auto* first = blocks.acquire(0, Hashes{1, 2, 3, 4});
  auto* second = blocks.acquire(0, Hashes{1, 2});
  blocks.set_fraction(0, first, kOne, kOne / 4);
  EXPECT_EQ(blocks.weight(0), 2 * kOne + 2 * (kOne / 4));
  blocks.release(0, second, kOne);
  EXPECT_EQ(blocks.weight(0), 4 * (kOne / 4));
  blocks.release(0, first, kOne / 4);
  EXPECT_EQ(blocks.weight(0), 0u);
}

// A split that no request needs any more is undone: the trie follows the live load, not its history.
TEST(ActiveBlocks, MergesSplitsBack) {
  ActiveBlocks blocks(1000);
  Hashes base{1, 2, 3, 4, 5, 6, 7, 8};
  auto* stays = blocks.acquire(0, base);
  for (std::size_t length = 1; length < base.size(); ++length) {
    auto* shorter = blocks.acquire(1, std::span(base).first(length));
    auto* fork = blocks.acquire(1, Hashes{1, 100 + length});
    EXPECT_GT(blocks.node_count(), 1u);
    blocks.release(1, shorter, kOne);
    blocks.release(1, fork, kOne);
    EXPECT_EQ(blocks.node_count(), 1u);
  }
  EXPECT_EQ(blocks.stored_blocks(), 8u);
  EXPECT_EQ(depths(blocks, base, 2), (std::vector<std::uint32_t>{8, 0}));
  blocks.release(0, stays, kOne);
  EXPECT_EQ(blocks.node_count(), 0u);
}

TEST(ActiveBlocks, RefusesWhatGoesBeyondItsBound) {
  ActiveBlocks blocks(4);
  auto* first = blocks.acquire(0, Hashes{1, 2, 3});
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(blocks.acquire(0, Hashes{7, 8}), nullptr);
  EXPECT_EQ(blocks.acquire(0, Hashes{1, 8, 9}), nullptr);
  EXPECT_EQ(blocks.node_count(), 1u);
  EXPECT_NE(blocks.acquire(0, Hashes{1, 2, 3}), nullptr);
  EXPECT_EQ(blocks.acquire(0, Hashes{}), nullptr);
  EXPECT_EQ(blocks.weight(0), 3 * kOne);
}

// Beside it: per rank and request a plain list of blocks, everything recounted each time.
TEST(ActiveBlocks, AgreesWithRecountingOverARandomHistory) {
  test::Random random(test::test_seed());
  struct Held {
    ActiveBlocks::Slot slot;
    ActiveBlocks::Node* terminal;
    Hashes hashes;
    std::uint64_t fraction;
  };
  constexpr std::size_t kSlots = 4;
  ActiveBlocks blocks(1 << 20);
  std::vector<Held> held;
  for (int step = 0; step < 20000; ++step) {
    const bool grow = held.size() < 40 && !random.one_in(3);
    if (grow || held.empty()) {
      // Hashes name their whole prefix, as real ones do: few branches, so that much is shared.
      Hashes hashes;
      std::uint64_t chain = 0;
      const std::uint64_t length = 1 + random.below(12);
      for (std::uint64_t i = 0; i < length; ++i) {
        chain = chain * 31 + 1 + random.below(2);
        hashes.push_back(chain);
      }
      const auto slot = static_cast<ActiveBlocks::Slot>(random.below(kSlots));
      held.push_back({slot, blocks.acquire(slot, hashes), hashes, kOne});
    } else {
      const std::size_t index = random.below(held.size());
      Held& entry = held[index];
      if (random.one_in(4)) {
        const std::uint64_t fraction = random.below(kOne + 1);
        blocks.set_fraction(entry.slot, entry.terminal, entry.fraction, fraction);
        entry.fraction = fraction;
      } else {
        blocks.release(entry.slot, entry.terminal, entry.fraction);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
      }
    }
    std::set<std::uint64_t> distinct;
    std::vector<std::map<std::uint64_t, std::vector<std::uint64_t>>> owners(kSlots);
    for (const Held& entry : held) {
      for (const auto hash : entry.hashes) {
        owners[entry.slot][hash].push_back(entry.fraction);
        distinct.insert(hash);
      }
    }
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      std::uint64_t expected = 0;
      for (const auto& [hash, fractions] : owners[slot]) {
        expected += fractions.size() == 1 ? fractions.front() : kOne;
      }
      ASSERT_EQ(blocks.weight(static_cast<ActiveBlocks::Slot>(slot)), expected) << "step " << step;
    }
    ASSERT_EQ(blocks.stored_blocks(), distinct.size());
    ASSERT_LE(blocks.node_count(), 2 * held.size());
    if (!held.empty()) {
      const Hashes& probe = held[random.below(held.size())].hashes;
      std::vector<std::uint32_t> expected(kSlots, 0);
      for (std::size_t slot = 0; slot < kSlots; ++slot) {
        while (expected[slot] < probe.size() && owners[slot].contains(probe[expected[slot]]))
          ++expected[slot];
      }
      ASSERT_EQ(depths(blocks, probe, kSlots), expected) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace handoff::epp
