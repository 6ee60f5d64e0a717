#include "shared/json/value_text.hpp"

#include <gtest/gtest.h>

namespace handoff::json {
namespace {

TEST(ValueText, KindBySpelling) {
  struct Row {
    std::string_view value;
    ValueKind kind;
  };
  const Row rows[] = {
      {"{}", ValueKind::object},       {"[1]", ValueKind::array},
      {"\"x\"", ValueKind::string},    {"true", ValueKind::literal_true},
      {"null", ValueKind::null},       {"false", ValueKind::literal_false},
      {"0", ValueKind::number},        {"-0", ValueKind::number},
      {"1.50", ValueKind::number},     {"1e400", ValueKind::number},
      {"-2E-7", ValueKind::number},    {"9223372036854775808", ValueKind::number},
      {"NaN", ValueKind::other},       {"Infinity", ValueKind::other},
      {"-Infinity", ValueKind::other}, {"01", ValueKind::other},
      {"1.", ValueKind::other},        {".5", ValueKind::other},
      {"+1", ValueKind::other},        {"1e", ValueKind::other},
      {"True", ValueKind::other},      {"-", ValueKind::other},
      {"1e+", ValueKind::other},       {"0x1f", ValueKind::other},
      {"", ValueKind::other},
  };
  for (const Row& row : rows) EXPECT_EQ(kind_of(row.value), row.kind) << row.value;
}

TEST(ValueText, EmptyObject) {
  EXPECT_TRUE(is_empty_object("{}"));
  EXPECT_TRUE(is_empty_object("{ \t\r\n}"));
  EXPECT_FALSE(is_empty_object("{\"a\":1}"));
  EXPECT_FALSE(is_empty_object("[]"));
  EXPECT_FALSE(is_empty_object("{"));
  EXPECT_FALSE(is_empty_object("{}}"));
  EXPECT_FALSE(is_empty_object(""));
}

TEST(ValueText, IntegerSpellingOnly) {
  EXPECT_EQ(parse_int64("0"), 0);
  EXPECT_EQ(parse_int64("-0"), 0);
  EXPECT_EQ(parse_int64("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_int64("-9223372036854775808"), INT64_MIN);
  for (const std::string_view refused : {"", "-", "+1", "01", "-01", "1.0", "1e3", " 1", "1 ", "\"1\"", "0x1",
                                         "9223372036854775808", "-9223372036854775809", "null", "1_000"}) {
    EXPECT_EQ(parse_int64(refused), std::nullopt) << refused;
  }
}

}  // namespace
}  // namespace handoff::json
