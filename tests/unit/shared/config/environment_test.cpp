#include "shared/config/environment.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace handoff::config {
namespace {

TEST(Environment, TrimsValuesAndTakesBlankForUnset) {
  const Environment environment(
      Environment::Variables{{"A", " \t8000\n"}, {"B", ""}, {"C", "  "}, {"A", "second"}});
  EXPECT_EQ(environment.find("A"), "8000");
  EXPECT_EQ(environment.find("B"), std::nullopt);
  EXPECT_EQ(environment.find("C"), std::nullopt);
  EXPECT_EQ(environment.find("D"), std::nullopt);
}

TEST(Environment, CopiesTheProcess) {
  ASSERT_EQ(::setenv("HANDOFF_ENVIRONMENT_TEST", "a=b", 1), 0);
  EXPECT_EQ(Environment::from_process().find("HANDOFF_ENVIRONMENT_TEST"), "a=b");
}

}  // namespace
}  // namespace handoff::config
