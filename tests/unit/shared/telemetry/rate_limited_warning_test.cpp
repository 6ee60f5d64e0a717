#include "shared/telemetry/rate_limited_warning.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace handoff::telemetry {
namespace {

using std::chrono::milliseconds;

std::chrono::steady_clock::time_point test_time{};

std::chrono::steady_clock::time_point test_clock() {
  return test_time;
}

TEST(RateLimitedWarning, PassesOncePerIntervalAndCountsTheRest) {
  RateLimitedWarning warning(milliseconds(100), test_clock);
  EXPECT_EQ(warning.try_pass(), 0U);
  EXPECT_EQ(warning.try_pass(), std::nullopt);
  test_time += milliseconds(99);
  EXPECT_EQ(warning.try_pass(), std::nullopt);
  test_time += milliseconds(1);
  EXPECT_EQ(warning.try_pass(), 2U);
  EXPECT_EQ(warning.try_pass(), std::nullopt);
}

TEST(RateLimitedWarning, ANewEpisodePassesAtOnce) {
  RateLimitedWarning warning(milliseconds(100), test_clock);
  EXPECT_EQ(warning.try_pass(), 0U);
  EXPECT_EQ(warning.try_pass(), std::nullopt);
  warning.end_episode();
  EXPECT_EQ(warning.try_pass(), 1U);
}

TEST(RateLimitedWarning, OnePassesAmongThreads) {
  RateLimitedWarning warning(milliseconds(100), test_clock);
  std::atomic<int> passed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) {
        if (warning.try_pass()) ++passed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(passed, 1);
  warning.end_episode();
  EXPECT_EQ(warning.try_pass(), 3999U);
}

}  // namespace
}  // namespace handoff::telemetry
