#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/json/byte_block.hpp"

/// Finding where values end, at memory speed. Internal to the scanner.
namespace handoff::json {

/// One past the end of a value that never ends (an unterminated string, an unmatched bracket).
inline constexpr std::size_t kNoEnd = std::string_view::npos;

/// The kinds of the brackets that are open, one bit each, so that depth costs no call stack: a body of
/// nothing but brackets needs an eighth of its size.
class BracketStack {
 public:
  bool empty() const { return depth_ == 0; }
  void clear() {
    depth_ = 0;
    full_.clear();
  }
  void push(bool is_object) {
    if (depth_ % kWordBits == 0 && depth_ != 0) full_.push_back(top_);
    top_ = top_ << 1U | static_cast<std::uint64_t>(is_object);
    ++depth_;
  }
  /// Closes the innermost bracket; false when none is open or it is of the other kind.
  bool pop(bool is_object) {
    if (depth_ == 0) return false;
    const bool was_object = (top_ & 1U) != 0;
    top_ >>= 1U;
    if (--depth_ % kWordBits == 0 && depth_ != 0) {
      top_ = full_.back();
      full_.pop_back();
    }
    return was_object == is_object;
  }
  /// Gives back memory that an unusually deep text has taken.
  void shrink();

 private:
  static constexpr std::size_t kWordBits = 64;

  std::uint64_t top_ = 0;            ///< the innermost at bit 0
  std::vector<std::uint64_t> full_;  ///< those around them
  std::size_t depth_ = 0;
};

/// Offset of the first byte at or after `at` that is not a space, tab, line feed or carriage return.
inline std::size_t skip_space(std::string_view text, std::size_t at) {
  while (at < text.size() && text[at] <= ' ' &&
         (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) {
    ++at;
  }
  return at;
}

/// Offset of the quote that closes the string whose first byte after the opening quote is `begin`.
std::size_t find_closing_quote(std::string_view text, std::size_t begin);

/// The same for a string of at most 31 bytes without a backslash, as most keys and small values are; kNoEnd
/// when it is not known to be one.
inline std::size_t find_short_string_end(std::string_view text, std::size_t begin) {
  if (text.size() - begin < block::kSize) return kNoEnd;
  std::uint32_t mask = block::quotes_and_backslashes(text.data() + begin);
  if (mask == 0) {
    begin += block::kSize;
    if (text.size() - begin < block::kSize) return kNoEnd;
    mask = block::quotes_and_backslashes(text.data() + begin);
    if (mask == 0) return kNoEnd;
  }
  const std::size_t first = begin + static_cast<std::size_t>(std::countr_zero(mask));
  return text[first] == '"' ? first : kNoEnd;
}

/// The same as find_closing_quote(), quicker where the string is short.
inline std::size_t find_string_end(std::string_view text, std::size_t begin) {
  const std::size_t end = find_short_string_end(text, begin);
  return end == kNoEnd ? find_closing_quote(text, begin) : end;
}

/// One past the bracket that matches the one at `open`. Only strings and brackets are looked at: what lies
/// between them is the engine's to judge.
std::size_t skip_nested(std::string_view text, std::size_t open, BracketStack& stack);

/// One past the scalar at `begin`: it ends before white space, a comma, a colon, a quote or a bracket.
std::size_t skip_scalar(std::string_view text, std::size_t begin);

}  // namespace handoff::json
