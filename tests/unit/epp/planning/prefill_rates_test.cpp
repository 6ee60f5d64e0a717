#include "epp/planning/prefill_rates.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(PrefillRates, KnowsNothingAtFirst) {
  EXPECT_EQ(PrefillRates().expected(1, 1000), std::nullopt);
}

TEST(PrefillRates, ExpectsWhatItLearned) {
  PrefillRates rates;
  rates.learn(1, 1000, milliseconds(100));
  ASSERT_TRUE(rates.expected(1, 2000));
  EXPECT_EQ(*rates.expected(1, 2000), milliseconds(200));
  EXPECT_EQ(rates.expected(2, 2000), std::nullopt) << "of another worker";
  rates.forget(1);
  EXPECT_EQ(rates.expected(1, 2000), std::nullopt);
}

TEST(PrefillRates, MovesTowardsWhatIsNew) {
  PrefillRates rates;
  rates.learn(1, 1000, seconds(1));
  for (int i = 0; i < 100; ++i) rates.learn(1, 1000, milliseconds(100));
  EXPECT_LT(*rates.expected(1, 1000), milliseconds(101));
}

TEST(PrefillRates, IgnoresShortPromptsAndNoTime) {
  PrefillRates rates;
  rates.learn(1, 63, seconds(1));
  rates.learn(1, 1000, seconds(0));
  EXPECT_EQ(rates.expected(1, 1000), std::nullopt);
}

TEST(PrefillRates, IsNeverLongerThanAnHour) {
  PrefillRates rates;
  rates.learn(1, 64, seconds(1000));
  EXPECT_EQ(*rates.expected(1, UINT64_MAX), std::chrono::hours(1));
}

}  // namespace
}  // namespace handoff::epp
