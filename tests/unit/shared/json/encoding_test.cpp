#include "shared/json/encoding.hpp"

#include <gtest/gtest.h>

namespace handoff::json {
namespace {

using namespace std::string_view_literals;

TEST(Encoding, FirstBytesDecide) {
  struct Row {
    std::string_view text;
    EncodingProblem problem;
    const char* why;
  };
  const Row rows[] = {
      {""sv, EncodingProblem::none, "nothing to guess from"},
      {"{}"sv, EncodingProblem::none, "plain UTF-8"},
      {"{\"é\":1}"sv, EncodingProblem::none, "UTF-8 beyond ASCII"},
      {"{\"ab\0\":1}"sv, EncodingProblem::none, "a NUL after the first four bytes is no sign of an encoding"},
      {"\xEF\xBB\xBF{}"sv, EncodingProblem::utf8_bom, "Python decodes it as utf-8-sig"},
      {"\xEF\xBB"sv, EncodingProblem::none, "half a mark"},
      {"\xFF\xFE{\0}\0"sv, EncodingProblem::utf16_bom, "UTF-16LE"},
      {"\xFE\xFF\0{\0}"sv, EncodingProblem::utf16_bom, "UTF-16BE"},
      {"\xFF\xFE\0\0{\0\0\0"sv, EncodingProblem::utf32_bom, "UTF-32LE begins with UTF-16LE's mark"},
      {"\0\0\xFE\xFF\0\0\0{"sv, EncodingProblem::utf32_bom, "UTF-32BE"},
      {"{\0}\0"sv, EncodingProblem::nul_byte, "UTF-16LE without a mark"},
      {"\0{\0}"sv, EncodingProblem::nul_byte, "UTF-16BE without a mark"},
      {"{\0\0\0"sv, EncodingProblem::nul_byte, "UTF-32LE without a mark"},
      {"\0\0\0{"sv, EncodingProblem::nul_byte, "UTF-32BE without a mark"},
      {"{\0"sv, EncodingProblem::nul_byte, "two bytes are enough for Python to guess"},
  };
  for (const Row& row : rows) EXPECT_EQ(detect_encoding(row.text), row.problem) << row.why;
}

TEST(Encoding, ProblemsHaveNames) {
  EXPECT_EQ(to_text(EncodingProblem::none), "none");
  EXPECT_EQ(to_text(EncodingProblem::utf16_bom), "UTF-16 byte order mark");
}

}  // namespace
}  // namespace handoff::json
