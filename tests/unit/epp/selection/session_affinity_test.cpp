#include "epp/selection/session_affinity.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

using std::chrono::seconds;

AffinityConfig config(AffinityMode mode, std::size_t sessions = 2) {
  AffinityConfig made;
  made.mode = mode;
  made.ttl = seconds(10);
  made.max_sessions = sessions;
  return made;
}

const SteadyTime kStart;

TEST(SessionAffinity, KeepsABindingForItsTimeToLive) {
  SessionAffinity affinity(config(AffinityMode::kSoft));
  EXPECT_EQ(affinity.find("s", kStart), std::nullopt);
  EXPECT_TRUE(affinity.bind("s", {1, 0}, kStart));
  EXPECT_EQ(affinity.find("s", kStart + seconds(9)), (WorkerRank{1, 0}));
  EXPECT_EQ(affinity.find("s", kStart + seconds(10)), std::nullopt);
  EXPECT_TRUE(affinity.bind("s", {2, 1}, kStart + seconds(9)));
  EXPECT_EQ(affinity.find("s", kStart + seconds(18)), (WorkerRank{2, 1}));
  affinity.drop_expired(kStart + seconds(19));
  EXPECT_EQ(affinity.size(), 0u);
}

TEST(SessionAffinity, SoftModeLetsTheLeastRecentGiveWay) {
  SessionAffinity affinity(config(AffinityMode::kSoft));
  affinity.bind("a", {1, 0}, kStart);
  affinity.bind("b", {1, 0}, kStart);
  affinity.bind("a", {1, 0}, kStart + seconds(1));
  EXPECT_TRUE(affinity.bind("c", {1, 0}, kStart + seconds(2)));
  EXPECT_EQ(affinity.size(), 2u);
  EXPECT_FALSE(affinity.find("b", kStart + seconds(2)));
  EXPECT_TRUE(affinity.find("a", kStart + seconds(2)));
}

TEST(SessionAffinity, HardModeBreaksNoLiveBinding) {
  SessionAffinity affinity(config(AffinityMode::kHard));
  affinity.bind("a", {1, 0}, kStart);
  affinity.bind("b", {1, 0}, kStart + seconds(5));
  EXPECT_FALSE(affinity.bind("c", {1, 0}, kStart + seconds(9)));
  EXPECT_TRUE(affinity.bind("c", {1, 0}, kStart + seconds(10)));
  EXPECT_FALSE(affinity.find("a", kStart + seconds(10)));
}

TEST(SessionAffinity, ForgetsEndedSessionsAndLeftWorkers) {
  SessionAffinity affinity(config(AffinityMode::kSoft, 10));
  affinity.bind("a", {1, 0}, kStart);
  affinity.bind("b", {2, 0}, kStart);
  affinity.bind("c", {1, 1}, kStart);
  affinity.end("b");
  affinity.end("unknown");
  EXPECT_EQ(affinity.size(), 2u);
  affinity.forget_worker(1);
  EXPECT_EQ(affinity.size(), 0u);
}

}  // namespace
}  // namespace handoff::epp
