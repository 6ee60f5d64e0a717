#include "epp/kv_index/kv_event_stream.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/epp/kv_index/test_seed.hpp"

namespace handoff::epp {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

// Payloads here are one byte: the number of the batch. 0xEE can't be decoded, 0xDD holds an orphan, 0xCC
// leaves something out.
constexpr std::uint8_t kBroken = 0xEE;
constexpr std::uint8_t kOrphan = 0xDD;
constexpr std::uint8_t kPartial = 0xCC;
constexpr SteadyTime kStart{};

class RecordingSink final : public KvBatchSink {
 public:
  KvApplyReport apply(std::span<const std::byte> payload) override {
    const auto value = std::to_integer<std::uint8_t>(payload[0]);
    KvApplyReport report;
    report.is_decoded = value != kBroken;
    report.has_orphans = value == kOrphan;
    report.has_gaps = value == kPartial;
    if (report.is_decoded) applied.push_back(value);
    return report;
  }
  void clear() override {
    ++clears;
    applied.clear();
  }

  std::vector<int> applied;  // since the last clear
  int clears = 0;
};

class KvEventStreamTest : public testing::Test {
 protected:
  static KvStreamOptions with_replay() {
    KvStreamOptions options;
    options.can_replay = true;
    options.replay_timeout = seconds(10);
    options.max_held_batches = 8;
    return options;
  }

  void live(KvEventStream& stream, std::uint64_t sequence) {
    live(stream, sequence, static_cast<std::uint8_t>(sequence));
  }
  void live(KvEventStream& stream, std::uint64_t sequence, std::uint8_t content) {
    const std::byte payload{content};
    stream.on_batch(sequence, {&payload, 1}, now_);
  }
  void replayed(KvEventStream& stream, std::uint64_t sequence) {
    const std::byte payload{static_cast<std::uint8_t>(sequence)};
    stream.on_replayed(sequence, {&payload, 1}, now_);
  }
  // Plays a publisher that still has the batches [from, to].
  void replay(KvEventStream& stream, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t n = from; n <= to; ++n) replayed(stream, n);
    stream.on_replay_end(now_);
  }

  RecordingSink sink_;
  SteadyTime now_ = kStart;
};

TEST_F(KvEventStreamTest, AppliesBatchesInOrder) {
  KvEventStream stream({}, sink_);
  for (std::uint64_t n = 0; n < 4; ++n) live(stream, n);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(sink_.clears, 0);
  EXPECT_TRUE(stream.counters().is_complete);
  EXPECT_EQ(stream.counters().next_sequence, 4u);
}

TEST_F(KvEventStreamTest, AsksForTheHistoryAsSoonAsItIsConnected) {
  KvEventStream stream(with_replay(), sink_);
  stream.on_connected(now_);
  EXPECT_EQ(stream.take_replay_request(), 0u);
  EXPECT_EQ(stream.take_replay_request(), std::nullopt);
  EXPECT_TRUE(stream.is_replaying());
  live(stream, 3);  // held
  replay(stream, 0, 2);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(stream.counters().is_complete);
  EXPECT_EQ(stream.counters().lost_histories, 0u);
}

// A first batch with number 0 needs no history; a later one asks for it from 0.
TEST_F(KvEventStreamTest, AFirstBatchInTheMiddleAsksForEverything) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 5);
  EXPECT_EQ(stream.take_replay_request(), 0u);
  EXPECT_THAT(sink_.applied, IsEmpty());
  replay(stream, 0, 5);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(stream.counters().covered_batches, 1u);

  KvEventStream fresh(with_replay(), sink_);
  live(fresh, 0);
  EXPECT_FALSE(fresh.is_replaying());
}

TEST_F(KvEventStreamTest, JoinsInTheMiddleWhenNothingCanBeReplayed) {
  KvEventStream stream({}, sink_);
  live(stream, 5);
  live(stream, 6);
  EXPECT_THAT(sink_.applied, ElementsAre(5, 6));
  EXPECT_FALSE(stream.counters().is_complete);
  EXPECT_EQ(stream.counters().gaps, 0u);
}

TEST_F(KvEventStreamTest, FillsAGapFromAReplay) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 4);
  EXPECT_EQ(stream.take_replay_request(), 1u);  // [last + 1, ...)
  live(stream, 5);
  // The publisher sends all it has, so also what came live meanwhile.
  replay(stream, 1, 5);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(sink_.clears, 0);
  EXPECT_EQ(stream.counters().gaps, 1u);
  EXPECT_EQ(stream.counters().missed_batches, 3u);
  EXPECT_EQ(stream.counters().covered_batches, 2u);
  EXPECT_TRUE(stream.counters().is_complete);
  // Copies of replayed batches may still be on their way: late, but not back in time.
  live(stream, 6);
  EXPECT_EQ(stream.counters().restarts, 0u);
}

TEST_F(KvEventStreamTest, DropsLiveCopiesOfWhatTheReplayBroughtAfterItsEnd) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 3);
  replay(stream, 1, 7);
  for (std::uint64_t n = 4; n <= 8; ++n) live(stream, n);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(stream.counters().restarts, 0u);
}

TEST_F(KvEventStreamTest, AGapThatCannotBeReplayedBreaksTheHistory) {
  KvEventStream stream({}, sink_);
  live(stream, 0);
  live(stream, 4);
  live(stream, 5);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(4, 5));  // rebuilt from what comes
  EXPECT_EQ(stream.counters().lost_histories, 1u);
  EXPECT_FALSE(stream.counters().is_complete);
}

// The publisher's buffer is bounded, and it doesn't say when a request reaches further back.
TEST_F(KvEventStreamTest, AReplayThatStartsTooLateBreaksTheHistory) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 9);
  replay(stream, 5, 9);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_FALSE(stream.counters().is_complete);
}

TEST_F(KvEventStreamTest, AHoleInAReplayBreaksTheHistory) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 5);
  replayed(stream, 1);
  replay(stream, 3, 5);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(3, 4, 5));
}

TEST_F(KvEventStreamTest, AReplayThatEndsTooEarlyIsNotRepeated) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 5);
  EXPECT_EQ(stream.take_replay_request(), 1u);
  replay(stream, 1, 2);
  EXPECT_EQ(stream.take_replay_request(), std::nullopt);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(5));
  EXPECT_EQ(stream.counters().replays, 1u);
}

TEST_F(KvEventStreamTest, AReplayHasALimitInTime) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 3);
  ASSERT_EQ(stream.replay_deadline(), kStart + seconds(10));
  now_ += seconds(9);
  replayed(stream, 1);  // progress does not move the limit
  stream.on_tick(now_);
  EXPECT_TRUE(stream.is_replaying());
  now_ += seconds(1);
  stream.on_tick(now_);
  EXPECT_FALSE(stream.is_replaying());
  EXPECT_EQ(stream.replay_deadline(), std::nullopt);
  EXPECT_EQ(stream.counters().failed_replays, 1u);
  EXPECT_THAT(sink_.applied, ElementsAre(3));
  replay(stream, 1, 2);  // too late
  EXPECT_THAT(sink_.applied, ElementsAre(3));
  // The next gap is another one.
  live(stream, 7);
  EXPECT_EQ(stream.counters().replays, 2u);
}

TEST_F(KvEventStreamTest, AFailedFirstReplayIsNotRepeatedForTheSameGap) {
  KvEventStream stream(with_replay(), sink_);
  stream.on_connected(now_);
  stream.on_replay_failed(now_);
  live(stream, 9);
  live(stream, 10);
  EXPECT_EQ(stream.counters().replays, 1u);
  EXPECT_THAT(sink_.applied, ElementsAre(9, 10));
  EXPECT_FALSE(stream.counters().is_complete);
}

TEST_F(KvEventStreamTest, AGapAmongHeldBatchesIsAskedForOnItsOwn) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 2);
  EXPECT_EQ(stream.take_replay_request(), 1u);
  live(stream, 3);
  live(stream, 6);
  live(stream, 7);
  replay(stream, 1, 1);
  EXPECT_EQ(stream.take_replay_request(), 4u);
  live(stream, 8);
  replay(stream, 4, 5);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(stream.counters().replays, 2u);
}

TEST_F(KvEventStreamTest, HoldsABoundedNumberOfBatches) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  for (std::uint64_t n = 5; n < 5 + 9; ++n) live(stream, n);  // one more than it may hold
  EXPECT_FALSE(stream.is_replaying());
  EXPECT_EQ(stream.counters().held_overflows, 1u);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(5, 6, 7, 8, 9, 10, 11, 12, 13));
}

TEST_F(KvEventStreamTest, HoldsABoundedNumberOfBytes) {
  KvStreamOptions options = with_replay();
  options.max_held_bytes = 1000;
  KvEventStream stream(options, sink_);
  live(stream, 0);
  const std::vector<std::byte> large(600, std::byte{9});
  stream.on_batch(5, large, now_);
  EXPECT_TRUE(stream.is_replaying());
  stream.on_batch(6, large, now_);
  EXPECT_FALSE(stream.is_replaying());
}

// An engine that restarted at the same address counts from 0 again.
TEST_F(KvEventStreamTest, NumbersThatGoBackMeanANewPublisher) {
  KvEventStream stream({}, sink_);
  for (std::uint64_t n = 0; n < 5; ++n) live(stream, n);
  live(stream, 0);
  live(stream, 1);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1));
  EXPECT_EQ(stream.counters().restarts, 1u);
  EXPECT_TRUE(stream.counters().is_complete);
}

TEST_F(KvEventStreamTest, ANewPublisherWhoseStartWeMissedIsAskedForIt) {
  KvEventStream stream(with_replay(), sink_);
  for (std::uint64_t n = 0; n < 5; ++n) live(stream, n);
  live(stream, 2);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_EQ(stream.take_replay_request(), 0u);
  replay(stream, 0, 2);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1, 2));
}

TEST_F(KvEventStreamTest, ANewPublisherDuringAReplayEndsIt) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 5);
  EXPECT_EQ(stream.take_replay_request(), 1u);
  live(stream, 0);
  EXPECT_FALSE(stream.is_replaying());
  replay(stream, 1, 4);  // of the old one
  live(stream, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1));
}

// After a reconnect anything may have happened, even when the numbers seem to go on.
TEST_F(KvEventStreamTest, AReconnectMeansUnknownHistory) {
  KvEventStream stream(with_replay(), sink_);
  stream.on_connected(now_);
  replay(stream, 0, 4);
  stream.take_replay_request();
  stream.on_connected(now_);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_EQ(stream.take_replay_request(), 0u);
  live(stream, 5);
  replay(stream, 0, 5);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(stream.counters().reconnects, 1u);
}

TEST_F(KvEventStreamTest, AReconnectWithoutReplayStartsFromWhatComes) {
  KvEventStream stream({}, sink_);
  stream.on_connected(now_);
  live(stream, 0);
  live(stream, 1);
  stream.on_connected(now_);
  live(stream, 7);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(7));
  EXPECT_FALSE(stream.counters().is_complete);
}

// Its number is used up, what it said is lost, and a replay would bring the same bytes.
TEST_F(KvEventStreamTest, ABatchThatCannotBeDecodedIsAGapOfItsOwn) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 1, kBroken);
  EXPECT_FALSE(stream.is_replaying());
  EXPECT_EQ(sink_.clears, 1);
  live(stream, 2);
  EXPECT_THAT(sink_.applied, ElementsAre(2));
  EXPECT_EQ(stream.counters().undecodable, 1u);
  EXPECT_EQ(stream.counters().gaps, 1u);
  EXPECT_EQ(stream.counters().next_sequence, 3u);
}

// With everything since the first batch applied there can be no block behind an unknown parent: it is not the
// publisher we think it is.
TEST_F(KvEventStreamTest, AnOrphanInACompleteHistoryMeansANewPublisher) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, 1, kOrphan);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_EQ(stream.take_replay_request(), 0u);
  replay(stream, 0, 1);
  // But not over and over again.
  live(stream, 2, kOrphan);
  EXPECT_EQ(stream.take_replay_request(), std::nullopt);
  EXPECT_EQ(stream.counters().contradictions, 2u);
  now_ += seconds(61);
  live(stream, 3);
}

TEST_F(KvEventStreamTest, OrphansInAnIncompleteHistoryAreExpected) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0, kPartial);
  live(stream, 1, kOrphan);
  EXPECT_EQ(sink_.clears, 0);
  EXPECT_EQ(stream.counters().contradictions, 0u);
}

TEST_F(KvEventStreamTest, AnOrphanWithoutReplayOnlyClears) {
  KvEventStream stream({}, sink_);
  live(stream, 0);
  live(stream, 1, kOrphan);
  live(stream, 2);
  EXPECT_EQ(sink_.clears, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(2));
  EXPECT_EQ(stream.counters().restarts, 0u);
}

TEST_F(KvEventStreamTest, SurvivesTheGreatestNumbers) {
  KvEventStream stream(with_replay(), sink_);
  live(stream, 0);
  live(stream, ~std::uint64_t{0}, 1);
  stream.on_replay_end(now_);
  live(stream, ~std::uint64_t{0}, 1);
  live(stream, 0);
  live(stream, 1);
  EXPECT_THAT(sink_.applied, ElementsAre(0, 1));
}

// A publisher that restarts, a network that drops, a replay that is short or late: whatever happens, what is
// applied since the last clear is a run of one publisher's batches without a hole.
TEST_F(KvEventStreamTest, NeverAppliesAcrossAHole) {
  const std::uint64_t seed = test::test_seed();
  SCOPED_TRACE("HANDOFF_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);

  // Payload: publisher and number.
  class RunSink final : public KvBatchSink {
   public:
    KvApplyReport apply(std::span<const std::byte> payload) override {
      const auto publisher = std::to_integer<int>(payload[0]);
      const auto number = std::to_integer<int>(payload[1]) * 256 + std::to_integer<int>(payload[2]);
      if (last) {
        EXPECT_EQ(publisher, last->first);
        EXPECT_EQ(number, last->second + 1);
      }
      last = {publisher, number};
      return {};
    }
    void clear() override { last.reset(); }
    std::optional<std::pair<int, int>> last;
  };

  for (int history = 0; history < 200; ++history) {
    RunSink sink;
    KvStreamOptions options = with_replay();
    options.can_replay = history % 4 != 0;
    KvEventStream stream(options, sink);
    int publisher = 0;
    std::uint64_t next = 0;
    const auto payload_of = [&](std::uint64_t n) {
      return std::vector<std::byte>{static_cast<std::byte>(publisher), static_cast<std::byte>(n >> 8),
                                    static_cast<std::byte>(n)};
    };
    stream.on_connected(now_);
    for (int step = 0; step < 400 && !HasFailure(); ++step) {
      const auto action = random() % 100;
      if (action < 70) {
        const std::uint64_t number = next++;
        if (random() % 10 != 0) stream.on_batch(number, payload_of(number), now_);
      } else if (action < 72) {
        ++publisher;  // seen as a reconnect, as the feed reports it before the new one's batches
        next = random() % 3;
        stream.on_connected(now_);
      } else if (action < 80) {
        now_ += seconds(4);
        stream.on_tick(now_);
      } else if (stream.is_replaying()) {
        const std::uint64_t from = stream.take_replay_request().value_or(next);
        const std::uint64_t oldest = next > 20 ? next - 20 : 0;
        for (std::uint64_t n = std::max(from, oldest); n < next && random() % 50 != 0; ++n) {
          stream.on_replayed(n, payload_of(n), now_);
        }
        if (random() % 4 != 0) stream.on_replay_end(now_);
      }
    }
  }
}

}  // namespace
}  // namespace handoff::epp
