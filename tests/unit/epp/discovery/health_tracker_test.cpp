#include "epp/discovery/health_tracker.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

TEST(HealthTracker, IsNotHealthyBeforeTheFirstProbe) {
  HealthTracker tracker({3, 1});
  EXPECT_FALSE(tracker.is_healthy());
  EXPECT_EQ(tracker.reason(), "not probed yet");
  tracker.on_probe("");
  EXPECT_TRUE(tracker.is_healthy());
  EXPECT_EQ(tracker.reason(), "");
}

TEST(HealthTracker, NeedsFailuresInARow) {
  HealthTracker tracker({3, 1});
  tracker.on_probe("");
  for (int round = 0; round < 3; ++round) {
    tracker.on_probe("a");
    tracker.on_probe("b");
    EXPECT_TRUE(tracker.is_healthy());
    tracker.on_probe("");
  }
  tracker.on_probe("a");
  tracker.on_probe("b");
  tracker.on_probe("c");
  EXPECT_FALSE(tracker.is_healthy());
  EXPECT_EQ(tracker.reason(), "c");
}

TEST(HealthTracker, NeedsSuccessesInARow) {
  HealthTracker tracker({1, 3});
  tracker.on_probe("");
  tracker.on_probe("");
  tracker.on_probe("refused");
  EXPECT_EQ(tracker.reason(), "refused");
  tracker.on_probe("");
  tracker.on_probe("");
  EXPECT_FALSE(tracker.is_healthy());
  EXPECT_EQ(tracker.reason(), "refused");
  tracker.on_probe("");
  EXPECT_TRUE(tracker.is_healthy());
}

TEST(HealthTracker, SaysWhyOneThatWasNeverHealthyIsOut) {
  HealthTracker tracker({3, 1});
  tracker.on_probe("refused");
  EXPECT_EQ(tracker.reason(), "refused");
}

}  // namespace
}  // namespace handoff::epp
