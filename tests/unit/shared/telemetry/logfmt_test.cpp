#include "shared/telemetry/logfmt.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace handoff::telemetry {
namespace {

using namespace std::string_view_literals;

std::string value_text(std::string_view value) {
  std::string line;
  append_value(line, value);
  return line;
}

TEST(Logfmt, ValuesAreQuotedAndEscapedWhenNeeded) {
  struct Row {
    std::string_view value;
    std::string_view text;
    const char* why;
  };
  const Row rows[] = {
      {"plain-1.2:/x", "plain-1.2:/x", "nothing to quote"},
      {"", "\"\"", "empty"},
      {"a b", "\"a b\"", "blank"},
      {"a=b", "\"a=b\"", "would look like a field"},
      {"say \"hi\"", "\"say \\\"hi\\\"\"", "quotes"},
      {"back\\slash", "\"back\\\\slash\"", "backslash"},
      {"a\nb\r\t", "\"a\\nb\\r\\t\"", "line ends"},
      {"\x1b[31m\0\x7F"sv, "\"\\u001b[31m\\u0000\\u007f\"", "terminal commands, NUL, DEL"},
      {"é€😀", "\"é€😀\"", "other scripts stay readable"},
      {"\xFF\xC3", "\"\\xff\\xc3\"", "bytes that are no UTF-8"},
      {"a\xC2\x85"
       "b\xC2\x9B",
       "\"a\\u0085b\\u009b\"", "control characters of Latin-1"},
      {"a\xE2\x80\xA8\xE2\x80\xA9", "\"a\\u2028\\u2029\"", "Unicode line separators"},
  };
  for (const Row& row : rows) EXPECT_EQ(value_text(row.value), row.text) << row.why;
}

TEST(Logfmt, LongValuesAreCutBetweenCharacters) {
  EXPECT_EQ(value_text(std::string(kValueBytes, 'x')), std::string(kValueBytes, 'x'));
  EXPECT_EQ(value_text(std::string(kValueBytes + 1, 'x')), '"' + std::string(kValueBytes, 'x') + "…\"");
  EXPECT_EQ(value_text(std::string(kValueBytes - 1, 'x') + "€€"),
            '"' + std::string(kValueBytes - 1, 'x') + "…\"");
  // A run of continuation bytes is no character to keep whole.
  EXPECT_GT(value_text(std::string(1000, '\x80')).size(), 4 * (kValueBytes - 3));
}

TEST(Logfmt, NamesKeepHarmlessCharactersOnly) {
  std::string line;
  append_name(line, "ok_Name-1.x bad=\n\"é");
  EXPECT_EQ(line, "ok_Name-1.x_bad_____");
}

TEST(Logfmt, Numbers) {
  const auto text = [](double number) {
    std::string line;
    append_number(line, number);
    return line;
  };
  EXPECT_EQ(text(0.0005), "0.001");
  EXPECT_EQ(text(-12.3456), "-12.346");
  EXPECT_EQ(text(-0.0001), "0.000");
  EXPECT_EQ(text(123456789.25), "123456789.250");
  EXPECT_EQ(text(1e300), "1e+300");
  EXPECT_EQ(text(std::nan("")), "nan");
  EXPECT_EQ(text(INFINITY), "inf");
}

}  // namespace
}  // namespace handoff::telemetry
