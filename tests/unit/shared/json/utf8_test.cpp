#include "shared/json/utf8.hpp"

#include <gtest/gtest.h>

namespace handoff::json {
namespace {

TEST(Utf8, Validity) {
  struct Row {
    std::string_view text;
    bool valid;
    const char* why;
  };
  const Row rows[] = {
      {"", true, "empty"},
      {"plain ASCII, longer than one word", true, "word-wise path"},
      {"12345678\xC3\xA9", true, "two bytes after a whole word"},
      {"\xE2\x82\xAC\xF0\x9F\x98\x80", true, "three and four bytes"},
      {"\xED\x9F\xBF\xEE\x80\x80", true, "both sides of the surrogates"},
      {"\xF4\x8F\xBF\xBF", true, "U+10FFFF"},
      {"\x80", false, "stray continuation"},
      {"12345678\xFF", false, "no first byte"},
      {"\xC3", false, "cut off"},
      {"\xE2\x82", false, "cut off after two of three"},
      {"\xE2\x82"
       "A",
       false, "ASCII instead of a continuation"},
      {"\xC0\xAF", false, "overlong slash"},
      {"\xE0\x9F\xBF", false, "overlong three bytes"},
      {"\xF0\x8F\xBF\xBF", false, "overlong four bytes"},
      {"\xED\xA0\x80", false, "encoded surrogate"},
      {"\xF4\x90\x80\x80", false, "above U+10FFFF"},
      {"\xF5\x80\x80\x80", false, "above U+10FFFF by its first byte"},
  };
  for (const Row& row : rows) EXPECT_EQ(is_valid_utf8(row.text), row.valid) << row.why;
}

TEST(Utf8, CodePointsOfEveryLengthReadBack) {
  for (const char32_t code_point : {0x00U, 0x7FU, 0x80U, 0x7FFU, 0x800U, 0xFFFFU, 0x10000U, 0x10FFFFU}) {
    std::string text;
    append_code_point(text, code_point);
    EXPECT_EQ(utf8_sequence_length(text, 0), text.size());
  }
}

TEST(Utf8, SurrogatesTakeThreeBytes) {
  std::string text;
  append_code_point(text, 0xD800);
  EXPECT_EQ(text, "\xED\xA0\x80");
}

}  // namespace
}  // namespace handoff::json
