#include "epp/selection/load_ledger.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <deque>
#include <map>

#include "tests/unit/epp/selection/test_seed.hpp"

namespace handoff::epp {
namespace {

using std::chrono::seconds;

BookingLoad load_of(std::uint64_t prefill, std::span<const std::uint64_t> hashes, std::uint64_t isl,
                    std::uint32_t block_size = 4) {
  BookingLoad load;
  load.prefill_tokens = prefill;
  load.sequence_hashes = hashes;
  load.isl_tokens = isl;
  load.block_size = block_size;
  return load;
}

TEST(LoadLedger, BooksPrefillTokensAndBlocksAndGivesThemBack) {
  LoadLedger ledger(1000);
  const std::vector<std::uint64_t> hashes{1, 2, 3};
  Booking& booking = ledger.book("a", 0, load_of(10, hashes, 13));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 10u);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 3u);
  EXPECT_EQ(ledger.load(0).active_requests, 1u);
  // Completing the prefill takes the tokens only; the blocks stay until the free.
  EXPECT_TRUE(ledger.complete_prefill(booking));
  EXPECT_FALSE(ledger.complete_prefill(booking));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 0u);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 3u);
  ledger.release(booking);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 0u);
  EXPECT_EQ(ledger.load(0).active_requests, 0u);
  EXPECT_EQ(ledger.find("a"), nullptr);
}

TEST(LoadLedger, FreeImpliesPrefillComplete) {
  LoadLedger ledger(1000);
  ledger.release(ledger.book("a", 0, load_of(10, {}, 10)));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 0u);
}

// +1 block; with a decay the blocks that only this request owns weigh that much, the new one included.
TEST(LoadLedger, OutputBlocksDecayWhatTheRequestOwnsAlone) {
  LoadLedger ledger(1000);
  const std::vector<std::uint64_t> long_prompt{1, 2, 3, 4};
  const std::vector<std::uint64_t> short_prompt{1, 2};
  Booking& first = ledger.book("a", 0, load_of(0, long_prompt, 16));
  Booking& second = ledger.book("b", 0, load_of(0, short_prompt, 8));
  ledger.add_output_blocks(first, 1, std::nullopt);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 5u);
  ledger.add_output_blocks(first, 1, 0.5);
  // 2 shared at 1; 2 of the prompt and 2 of the output at 0.5.
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 4u);
  ledger.add_output_blocks(first, 1, std::nullopt);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 5u);
  ledger.release(second);
  // Alone again with all of its prompt: 4 x 0.5 + 2 x 0.5 + 1.
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 4u);
  ledger.release(first);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 0u);
}

// Prompt of 6 tokens in blocks of 4: one complete block, and the output first fills the open one.
TEST(LoadLedger, CountsOneBlockPerCrossedBoundary) {
  LoadLedger ledger(1000);
  const std::vector<std::uint64_t> hashes{1};
  Booking& booking = ledger.book("a", 0, load_of(0, hashes, 6));
  struct Row {
    std::uint64_t output;
    std::uint64_t blocks;
  };
  for (const Row row : {Row{1, 1}, Row{2, 2}, Row{5, 2}, Row{6, 3}, Row{30, 9}}) {
    EXPECT_TRUE(ledger.report_output(booking, row.output, true));
    EXPECT_EQ(ledger.load(0).active_decode_blocks, row.blocks) << row.output;
  }
  EXPECT_FALSE(ledger.report_output(booking, 30, true));
  EXPECT_FALSE(ledger.report_output(booking, 7, true));
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 9u);
}

// decay = max(0, 1 - output / expected)
TEST(LoadLedger, DecaysByTheExpectedOutput) {
  LoadLedger ledger(1000);
  const std::vector<std::uint64_t> hashes{1, 2, 3, 4};
  BookingLoad load = load_of(0, hashes, 16);
  load.expected_output_tokens = 16;
  Booking& booking = ledger.book("a", 0, load);
  ledger.report_output(booking, 8, true);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 3u);  // (4 + 2) x 0.5
  ledger.report_output(booking, 20, true);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 0u);
  ledger.release(booking);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 0u);
}

TEST(LoadLedger, BlocksBeyondTheBoundCountUnshared) {
  LoadLedger ledger(3);
  const std::vector<std::uint64_t> hashes{1, 2, 3, 4};
  Booking& booking = ledger.book("a", 0, load_of(0, hashes, 16));
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 4u);
  ledger.release(booking);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 0u);
}

TEST(LoadLedger, SweepsOnlyWhatNobodyHolds) {
  LoadLedger ledger(10);
  const SteadyTime start;
  Lease lease = Lease::make();
  ledger.book("held", 0, load_of(1, {}, 1)).lease = lease.watch();
  ledger.book("orphan", 0, load_of(1, {}, 1));
  bool done = false;
  EXPECT_TRUE(ledger.sweep(start, seconds(300), 10, done).empty());
  EXPECT_TRUE(done);
  EXPECT_TRUE(ledger.sweep(start + seconds(299), seconds(300), 10, done).empty());
  const auto expired = ledger.sweep(start + seconds(300), seconds(300), 10, done);
  EXPECT_EQ(expired, std::vector<std::string>{"orphan"});
  // A lease that is dropped starts its time when a sweep first sees it.
  lease.reset();
  EXPECT_EQ(ledger.sweep(start + seconds(10000), seconds(300), 10, done).size(), 1u);
}

// The time without a holder counts anew when it is held again in between.
TEST(LoadLedger, AnOrphanThatIsHeldAgainBeginsAnew) {
  LoadLedger ledger(10);
  const SteadyTime start;
  Booking& booking = ledger.book("a", 0, load_of(1, {}, 1));
  bool done = false;
  const auto sweep_at = [&](int second) {
    return ledger.sweep(start + seconds(second), seconds(300), 10, done).size();
  };
  EXPECT_EQ(sweep_at(0), 0u);
  Lease lease = Lease::make();
  booking.lease = lease.watch();
  EXPECT_EQ(sweep_at(200), 0u);
  lease.reset();
  EXPECT_EQ(sweep_at(250), 0u);
  EXPECT_EQ(sweep_at(549), 0u);
  EXPECT_EQ(sweep_at(550), 1u);
}

TEST(LoadLedger, SweepsInSteps) {
  LoadLedger ledger(10);
  for (int i = 0; i < 5; ++i) ledger.book(std::to_string(i), 0, load_of(1, {}, 1));
  bool done = true;
  std::size_t expired = 0;
  int steps = 0;
  for (const int second : {0, 1}) {
    done = false;
    while (!done) {
      for (const auto& id : ledger.sweep(SteadyTime() + seconds(second), seconds(1), 2, done)) {
        ledger.release(*ledger.find(id));
        ++expired;
      }
      ++steps;
    }
  }
  EXPECT_EQ(expired, 5u);
  EXPECT_EQ(ledger.size(), 0u);
  EXPECT_EQ(steps, 6);
}

// Beside it: every booking as a plain record, and the load of a rank summed up from all of them each time.
TEST(LoadLedger, AgreesWithSummingUpOverARandomHistory) {
  struct Record {
    ActiveBlocks::Slot slot = 0;
    std::uint64_t prefill = 0;
    std::vector<std::uint64_t> hashes;
    std::uint64_t unshared = 0;
    std::vector<double> output_weights;
    double fraction = 1.0;
  };
  test::Random random(test::test_seed());
  constexpr std::uint32_t kSlots = 3;
  LoadLedger ledger(1 << 20);
  std::map<std::string, Record> records;
  std::uint64_t next_id = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t what = random.below(6);
    if (records.size() < 30 && what < 2) {
      Record record;
      record.slot = static_cast<std::uint32_t>(random.below(kSlots));
      record.prefill = random.below(3) * 100;
      if (random.one_in(3)) {
        record.unshared = random.below(5);
      } else {
        std::uint64_t chain = 0;
        for (std::uint64_t i = random.below(10); i > 0; --i) {
          chain = chain * 31 + 1 + random.below(2);
          record.hashes.push_back(chain);
        }
      }
      BookingLoad load = load_of(record.prefill, record.hashes, 100);
      load.unshared_blocks = record.unshared;
      const std::string id = std::to_string(next_id++);
      ledger.book(id, record.slot, load);
      records.emplace(id, record);
    } else if (!records.empty()) {
      auto entry = records.begin();
      std::advance(entry, static_cast<std::ptrdiff_t>(random.below(records.size())));
      auto& [id, record] = *entry;
      Booking& booking = *ledger.find(id);
      if (what == 2) {
        EXPECT_EQ(ledger.complete_prefill(booking), record.prefill > 0);
        record.prefill = 0;
      } else if (what == 3) {
        std::optional<double> decay;
        if (random.one_in(2)) decay = static_cast<double>(random.below(9)) / 8.0;
        ledger.add_output_blocks(booking, 1, decay);
        record.output_weights.push_back(1.0);
        if (decay) {
          record.fraction = *decay;
          for (double& weight : record.output_weights) weight = *decay;
        }
      } else {
        ledger.release(booking);
        records.erase(entry);
      }
    }
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      std::uint64_t prefill = 0;
      std::uint32_t requests = 0;
      double blocks = 0.0;
      std::map<std::uint64_t, std::vector<double>> owners;
      for (const auto& [id, record] : records) {
        if (record.slot != slot) continue;
        prefill += record.prefill;
        ++requests;
        blocks += static_cast<double>(record.unshared) * record.fraction;
        for (const double weight : record.output_weights) blocks += weight;
        for (const auto hash : record.hashes) owners[hash].push_back(record.fraction);
      }
      for (const auto& [hash, fractions] : owners) blocks += fractions.size() == 1 ? fractions[0] : 1.0;
      const auto actual = ledger.load(slot);
      ASSERT_EQ(actual.active_prefill_tokens, prefill) << "step " << step;
      ASSERT_EQ(actual.active_requests, requests) << "step " << step;
      // Eighths are exact in both number systems.
      ASSERT_EQ(actual.active_decode_blocks, static_cast<std::uint64_t>(std::llround(blocks)))
          << "step " << step;
    }
  }
}

BookingLoad modelled(std::uint64_t tokens, std::optional<std::chrono::nanoseconds> duration) {
  BookingLoad load = load_of(tokens, {}, tokens);
  load.prefill_duration = duration;
  return load;
}

// The oldest pending prefill melts in proportion to the time since it became the oldest.
TEST(LoadLedger, ModelledPrefillMeltsFromItsAnchor) {
  LoadLedger ledger(1000);
  const SteadyTime start{seconds(100)};
  ledger.advance(start);
  Booking& first = ledger.book("a", 0, modelled(100, seconds(10)));
  Booking& second = ledger.book("b", 0, modelled(60, seconds(6)));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 160u);
  ledger.advance(start + seconds(5));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 110u);
  // All are modelled: what the anchor is over its time spills into the next, down to nothing.
  ledger.advance(start + seconds(12));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 40u);
  ledger.advance(start + seconds(100));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 0u);
  // The next one becomes the anchor when the first is done, and starts whole.
  ledger.complete_prefill(first);
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 60u);
  ledger.advance(start + seconds(103));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 30u);
  ledger.release(second);
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 0u);
}

TEST(LoadLedger, OneUnmodelledPrefillStopsTheSpilling) {
  LoadLedger ledger(1000);
  const SteadyTime start{seconds(100)};
  ledger.advance(start);
  ledger.book("a", 0, modelled(100, seconds(10)));
  Booking& plain = ledger.book("b", 0, modelled(60, std::nullopt));
  ledger.advance(start + seconds(5));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 110u);
  ledger.advance(start + seconds(50));
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 60u);
  // The one in the middle or at the end may go first; the anchor stays what it is.
  ledger.complete_prefill(plain);
  EXPECT_EQ(ledger.load(0).active_prefill_tokens, 0u);
  // An anchor that is not modelled does not melt.
  Booking& other = ledger.book("c", 1, modelled(50, std::nullopt));
  ledger.book("d", 1, modelled(50, seconds(1)));
  ledger.advance(start + seconds(90));
  EXPECT_EQ(ledger.load(1).active_prefill_tokens, 100u);
  ledger.complete_prefill(other);
  ledger.advance(start + std::chrono::milliseconds(90'500));
  EXPECT_EQ(ledger.load(1).active_prefill_tokens, 25u);
  // A duration of nothing is over at once.
  ledger.book("e", 2, modelled(50, seconds(0)));
  EXPECT_EQ(ledger.load(2).active_prefill_tokens, 0u);
}

// Every kept hash stands for a group of blocks.
TEST(LoadLedger, AStrideScalesTheCountBack) {
  LoadLedger ledger(1000, 4);
  const std::vector<std::uint64_t> two_groups{40, 80};
  const std::vector<std::uint64_t> one_group{40};
  BookingLoad load = load_of(0, two_groups, 10 * 4);
  load.unshared_blocks = 2;
  Booking& first = ledger.book("a", 0, load);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 10u);
  ledger.book("b", 0, load_of(0, one_group, 4 * 4));
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 10u);
  ledger.release(first);
  EXPECT_EQ(ledger.load(0).active_decode_blocks, 4u);
}

// Beside it: each rank's pending prefills as a plain list in the order they came, and the rule applied to it.
TEST(LoadLedger, ModelledPrefillAgreesWithAPlainListOverARandomHistory) {
  struct Pending {
    std::string id;
    std::uint64_t tokens = 0;
    std::optional<std::uint64_t> milliseconds;
  };
  struct Rank {
    std::deque<Pending> pending;
    std::uint64_t anchored_at = 0;
  };
  test::Random random(test::test_seed());
  constexpr std::uint32_t kSlots = 3;
  LoadLedger ledger(1000);
  std::array<Rank, kSlots> ranks;
  std::uint64_t now = 1;
  for (int step = 0; step < 20000; ++step) {
    const auto slot = static_cast<std::uint32_t>(random.below(kSlots));
    Rank& rank = ranks[slot];
    now += random.below(50);
    ledger.advance(SteadyTime{std::chrono::milliseconds(now)});
    if (rank.pending.size() < 6 && random.one_in(2)) {
      // Powers of two, so that the shares are exact in both.
      Pending entry{std::to_string(step), 64 * (1 + random.below(4)), std::nullopt};
      if (!random.one_in(5)) entry.milliseconds = std::uint64_t{1} << random.below(10);
      std::optional<std::chrono::nanoseconds> duration;
      if (entry.milliseconds) duration = std::chrono::milliseconds(*entry.milliseconds);
      ledger.book(entry.id, slot, modelled(entry.tokens, duration));
      if (rank.pending.empty()) rank.anchored_at = now;
      rank.pending.push_back(entry);
    } else if (!rank.pending.empty()) {
      const std::size_t which = random.below(rank.pending.size());
      Booking& booking = *ledger.find(rank.pending[which].id);
      random.one_in(2) ? ledger.release(booking) : (void)ledger.complete_prefill(booking);
      if (which == 0) rank.anchored_at = now;
      rank.pending.erase(rank.pending.begin() + static_cast<std::ptrdiff_t>(which));
    }
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      std::uint64_t sum = 0;
      bool all_modelled = true;
      for (const Pending& entry : ranks[i].pending) {
        sum += entry.tokens;
        all_modelled &= entry.milliseconds.has_value();
      }
      std::uint64_t done = 0;
      if (!ranks[i].pending.empty() && ranks[i].pending.front().milliseconds) {
        const Pending& anchor = ranks[i].pending.front();
        done = anchor.tokens * (now - ranks[i].anchored_at) / *anchor.milliseconds;
        done = std::min(done, all_modelled ? sum : anchor.tokens);
      }
      ASSERT_EQ(ledger.load(i).active_prefill_tokens, sum - done) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace handoff::epp
