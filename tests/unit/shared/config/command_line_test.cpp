#include "shared/config/command_line.hpp"

#include <gtest/gtest.h>

namespace handoff::config {
namespace {

CommandLine split(const std::vector<std::string>& arguments) {
  return split_arguments(arguments, [](std::string_view flag) { return flag != "help"; });
}

TEST(CommandLine, TakesBothSpellings) {
  const auto line = split({"--port", " 1 ", "--bind=a=b", "--empty="});
  ASSERT_EQ(line.flags.size(), 3U);
  EXPECT_EQ(line.flags[0].name, "port");
  EXPECT_EQ(line.flags[0].value, "1");
  EXPECT_EQ(line.flags[1].value, "a=b");
  EXPECT_EQ(line.flags[2].value, "");
  EXPECT_TRUE(line.strays.empty());
}

TEST(CommandLine, AForgottenValueDoesNotSwallowTheNextFlag) {
  const auto line = split({"--port", "--bind", "x"});
  ASSERT_EQ(line.flags.size(), 2U);
  EXPECT_EQ(line.flags[0].value, std::nullopt);
  EXPECT_EQ(line.flags[1].value, "x");
}

TEST(CommandLine, NegativeNumbersAreValues) {
  EXPECT_EQ(split({"--port", "-1"}).flags[0].value, "-1");
}

TEST(CommandLine, TellsStrayArgumentsByPlace) {
  const auto line = split({"stray", "-h", "also", "--", "-x"});
  EXPECT_EQ(line.strays, (std::vector<std::size_t>{1, 3, 4, 5}));
  ASSERT_EQ(line.flags.size(), 1U);
  EXPECT_EQ(line.flags[0].name, "help");
}

}  // namespace
}  // namespace handoff::config
