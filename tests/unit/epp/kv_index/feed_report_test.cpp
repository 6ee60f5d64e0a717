#include "epp/kv_index/feed_report.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

TEST(FeedReport, TellsEachChangeOnce) {
  FeedReport report;
  SteadyTime now{};
  EXPECT_FALSE(report.take(now));
  report.note(FeedState::connecting);
  EXPECT_FALSE(report.take(now));
  report.note(FeedState::unreachable);
  report.note(FeedState::unreachable);
  const auto line = report.take(now);
  ASSERT_TRUE(line);
  EXPECT_EQ(line->state, FeedState::unreachable);
  EXPECT_EQ(line->suppressed, 0U);
  EXPECT_FALSE(report.take(now + std::chrono::hours(1)));
  EXPECT_FALSE(report.due());
  report.note(FeedState::following);
  EXPECT_EQ(report.take(now)->state, FeedState::following);
}

TEST(FeedReport, HoldsBackWhatChangesAllTheTimeAndTellsItsEnd) {
  FeedReport report;
  SteadyTime now{};
  for (unsigned i = 0; i < FeedReport::kMost; ++i) {
    report.note(i % 2 == 0 ? FeedState::disconnected : FeedState::following);
    ASSERT_TRUE(report.take(now)) << i;
  }
  for (int i = 0; i < 100; ++i) {
    now += std::chrono::milliseconds(1);
    report.note(i % 2 == 0 ? FeedState::undecodable : FeedState::following);
    EXPECT_FALSE(report.take(now));
  }
  report.note(FeedState::history_lost);
  EXPECT_FALSE(report.take(now));
  ASSERT_TRUE(report.due());
  const auto line = report.take(*report.due());
  ASSERT_TRUE(line);
  EXPECT_EQ(line->state, FeedState::history_lost);
  EXPECT_EQ(line->suppressed, 100U);
  EXPECT_FALSE(report.due());
}

}  // namespace
}  // namespace handoff::epp
