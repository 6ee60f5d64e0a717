#include "shared/telemetry/level.hpp"

#include <gtest/gtest.h>

namespace handoff::telemetry {
namespace {

TEST(Level, NamesReadBack) {
  for (const Level level : {Level::trace, Level::debug, Level::info, Level::warn, Level::error, Level::off}) {
    EXPECT_EQ(parse_level(to_text(level)), level);
  }
}

TEST(Level, AnyCaseAndWarning) {
  EXPECT_EQ(parse_level("INFO"), Level::info);
  EXPECT_EQ(parse_level("Warning"), Level::warn);
  EXPECT_EQ(parse_level("verbose"), std::nullopt);
  EXPECT_EQ(parse_level(""), std::nullopt);
}

}  // namespace
}  // namespace handoff::telemetry
