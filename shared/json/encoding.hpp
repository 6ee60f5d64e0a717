#pragma once

#include <cstdint>
#include <string_view>

namespace handoff::json {

/// Why a body must not be scanned as UTF-8 JSON: an engine that guesses the encoding from the first bytes, as
/// Python's json does, would read other text than we do.
enum class EncodingProblem : std::uint8_t {
  none,
  utf8_bom,
  utf16_bom,
  utf32_bom,
  nul_byte,  ///< a NUL among the first four bytes: UTF-16 or UTF-32 without a byte order mark
};

/// Looks at the first four bytes only; whether the rest is valid UTF-8 is `is_valid_utf8`'s question.
EncodingProblem detect_encoding(std::string_view text);

/// Short name of a problem for messages, "none" included.
std::string_view to_text(EncodingProblem problem);

}  // namespace handoff::json
