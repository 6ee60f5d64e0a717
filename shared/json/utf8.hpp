#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace handoff::json {

/// Length in bytes (1 to 4) of the well-formed UTF-8 sequence that starts at `at`, or 0 when there is none: a
/// stray or missing continuation byte, an overlong form, an encoded surrogate, a code point above U+10FFFF.
/// `at` must be less than `text.size()`.
std::size_t utf8_sequence_length(std::string_view text, std::size_t at);

/// Whether the whole text is well-formed UTF-8 (the empty text is).
bool is_valid_utf8(std::string_view text);

/// Appends a code point below U+110000. Surrogates become three bytes ("WTF-8"), which is not valid UTF-8 but
/// keeps names that hold lone surrogates comparable.
void append_code_point(std::string& out, char32_t code_point);

}  // namespace handoff::json
