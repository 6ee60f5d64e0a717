#include "shared/json/string_text.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shared/json/utf8.hpp"

namespace handoff::json {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

TEST(DecodeString, ResolvesEscapes) {
  struct Row {
    std::string_view value;
    std::string_view meaning;
    const char* why;
  };
  const Row rows[] = {
      {R"("")", "", "empty"},
      {R"("plain")", "plain", "no escapes"},
      {R"("\"\\\/\b\f\n\r\t")", "\"\\/\b\f\n\r\t", "every short escape"},
      {R"("\u0041\u00e9\u20AC")", "A\xC3\xA9\xE2\x82\xAC", "one to three bytes, both cases of hex"},
      {R"("\ud83d\ude00")", "\xF0\x9F\x98\x80", "surrogate pair"},
      {R"("\ud83d")", "\xED\xA0\xBD", "lone high surrogate"},
      {R"("\ude00x")", "\xED\xB8\x80x", "lone low surrogate"},
      {R"("\ud83d\ud83d\ude00")", "\xED\xA0\xBD\xF0\x9F\x98\x80", "lone one before a pair"},
      {R"("\ud83d\u0041")",
       "\xED\xA0\xBD"
       "A",
       "high surrogate before another escape"},
      {R"("a\u0000b")", "a\0b"sv, "NUL"},
      {"\"\xFF\"", "\xFF", "bytes are copied unjudged"},
  };
  for (const Row& row : rows) {
    std::string out = "left over";
    EXPECT_TRUE(decode_string(row.value, out)) << row.why;
    EXPECT_EQ(out, row.meaning) << row.why;
  }
}

TEST(DecodeString, RefusesWhatIsNotOneString) {
  std::string out;
  for (const std::string_view refused :
       {R"()", R"(")", R"(x)", R"("\")", R"("\x")", R"("\u12")", R"("\u12g4")", R"("\u 123")", R"("a" )",
        R"("a"b")", R"("\ud83d\u12")", R"('a')"}) {
    EXPECT_FALSE(decode_string(refused, out)) << refused;
  }
}

TEST(StringIsEmpty, OnlyForTwoQuotes) {
  EXPECT_TRUE(string_is_empty("\"\""));
  EXPECT_FALSE(string_is_empty("\" \""));
  EXPECT_FALSE(string_is_empty("null"));
  EXPECT_FALSE(string_is_empty(""));
}

TEST(AppendQuoted, EscapesWhatJsonDemands) {
  std::string out = "x:";
  append_quoted(out, "q\" b\\ / \n\t\x01\x7F \xE2\x82\xAC\0"sv);
  EXPECT_EQ(out, "x:\"q\\\" b\\\\ / \\n\\t\\u0001\x7F \xE2\x82\xAC\\u0000\"");
}

TEST(AppendQuoted, ReplacesInvalidUtf8) {
  std::string out;
  append_quoted(out, "a\xFF\xC3z\xED\xA0\x80");
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(out, "\"a" + r + r + "z" + r + r + r + "\"");
}

TEST(AppendQuoted, EveryPairOfBytesGivesValidJson) {
  for (unsigned pair = 0; pair < 0x10000; ++pair) {
    const std::string text = {static_cast<char>(pair >> 8U), static_cast<char>(pair & 0xFFU)};
    std::string quoted;
    append_quoted(quoted, text);
    ASSERT_TRUE(nlohmann::json::accept(quoted)) << pair;
    std::string decoded;
    ASSERT_TRUE(decode_string(quoted, decoded)) << pair;
    ASSERT_TRUE(!is_valid_utf8(text) || decoded == text) << pair;
  }
}

}  // namespace
}  // namespace handoff::json
