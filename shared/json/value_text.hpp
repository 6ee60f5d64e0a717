#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace handoff::json {

/// What a value is by its spelling.
enum class ValueKind : std::uint8_t {
  object,
  array,
  string,
  number,  ///< JSON's number grammar, of any length and size
  literal_true,
  literal_false,
  null,
  other,  ///< any other unquoted word: NaN and Infinity, which Python accepts, or an error for the engine to
          ///< find
};

/// The kind of a complete, trimmed value. Objects, arrays and strings are told by their first byte only.
ValueKind kind_of(std::string_view value);

/// Whether `value` is an object without members, white space inside included.
bool is_empty_object(std::string_view value);

/// The value of an integer spelled `-?(0|[1-9][0-9]*)`; nothing for other spellings (1.0, 1e3, +1, 01) and
/// for numbers that don't fit.
std::optional<std::int64_t> parse_int64(std::string_view value);

}  // namespace handoff::json
