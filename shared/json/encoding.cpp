#include "shared/json/encoding.hpp"

namespace handoff::json {

using namespace std::string_view_literals;

EncodingProblem detect_encoding(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF"sv)) return EncodingProblem::utf8_bom;
  // UTF-32 first: its little-endian mark begins with UTF-16's.
  if (text.starts_with("\xFF\xFE\0\0"sv) || text.starts_with("\0\0\xFE\xFF"sv)) {
    return EncodingProblem::utf32_bom;
  }
  if (text.starts_with("\xFF\xFE"sv) || text.starts_with("\xFE\xFF"sv)) return EncodingProblem::utf16_bom;
  if (text.substr(0, 4).find('\0') != std::string_view::npos) return EncodingProblem::nul_byte;
  return EncodingProblem::none;
}

std::string_view to_text(EncodingProblem problem) {
  switch (problem) {
    case EncodingProblem::none:
      return "none";
    case EncodingProblem::utf8_bom:
      return "UTF-8 byte order mark";
    case EncodingProblem::utf16_bom:
      return "UTF-16 byte order mark";
    case EncodingProblem::utf32_bom:
      return "UTF-32 byte order mark";
    case EncodingProblem::nul_byte:
      return "NUL among the first four bytes";
  }
  return "unknown";
}

}  // namespace handoff::json
