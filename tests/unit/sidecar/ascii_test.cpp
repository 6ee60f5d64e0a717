#include "sidecar/ascii.hpp"

#include <gtest/gtest.h>

#include <string>

namespace handoff::sidecar {
namespace {

// Every pair of bytes, at every place of a word and of the bytes after it.
TEST(Ascii, ComparesEveryByteIgnoringOnlyTheCaseOfLetters) {
  for (std::size_t at = 0; at < 11; ++at) {
    std::string a = "Some-Header";
    std::string b = "sOME-hEADER";
    ASSERT_TRUE(equals_ignoring_case(a, b));
    for (int x = 0; x < 256; ++x) {
      for (int y = 0; y < 256; ++y) {
        a[at] = static_cast<char>(x);
        b[at] = static_cast<char>(y);
        ASSERT_EQ(equals_ignoring_case(a, b), ascii_lower(a[at]) == ascii_lower(b[at]))
            << at << ' ' << x << ' ' << y;
      }
    }
  }
}

TEST(Ascii, ComparesSizesToo) {
  EXPECT_TRUE(equals_ignoring_case("", ""));
  EXPECT_FALSE(equals_ignoring_case("a", ""));
  EXPECT_FALSE(equals_ignoring_case("12345678", "123456789"));
}

TEST(Ascii, TrimsBlanksOnly) {
  EXPECT_EQ(trim_blanks(" \ta b\t "), "a b");
  EXPECT_EQ(trim_blanks("\na\n"), "\na\n");
  EXPECT_EQ(trim_blanks(" \t "), "");
  EXPECT_EQ(trim_blanks(""), "");
}

}  // namespace
}  // namespace handoff::sidecar
