#include "shared/config/printable.hpp"

#include <gtest/gtest.h>

namespace handoff::config {
namespace {

TEST(Printable, ShowsControlsAndInvalidBytesAsHex) {
  EXPECT_EQ(printable("a\nb\x7F\xFF é"), "a\\x0ab\\x7f\\xff é");
}

TEST(InQuotes, CutsLongTextBetweenCharacters) {
  const std::string text = std::string(79, 'x') + "€tail";
  EXPECT_EQ(in_quotes(text), '"' + std::string(79, 'x') + "\"...");
  EXPECT_EQ(in_quotes("short"), "\"short\"");
}

TEST(Nearest, FindsTyposOnly) {
  const std::vector<std::string> names = {"port", "drain-timeout-ms", "bind"};
  EXPECT_EQ(nearest("prt", names), "port");
  EXPECT_EQ(nearest("drain-time-ms", names), "drain-timeout-ms");
  EXPECT_EQ(nearest("drain-time-ms", names, 2), std::nullopt);
  EXPECT_EQ(nearest("drain-timeout-m", names, 2), "drain-timeout-ms");
  EXPECT_EQ(nearest("something-else", names), std::nullopt);
  EXPECT_EQ(nearest(std::string(100'000, 'x'), names), std::nullopt);
}

TEST(Trim, KeepsInnerBlanks) {
  EXPECT_EQ(trim("\t a b \r\n"), "a b");
  EXPECT_EQ(trim("  "), "");
}

}  // namespace
}  // namespace handoff::config
