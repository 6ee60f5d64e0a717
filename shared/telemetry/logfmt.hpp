#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Spelling of log lines; internal to this folder.
namespace handoff::telemetry {

/// A value's share of a line: longer ones are cut between characters and end with "…".
inline constexpr std::size_t kValueBytes = 256;

/// Appends an event or field name; whatever isn't a letter, a digit, '_', '-' or '.' becomes '_'.
void append_name(std::string& line, std::string_view name);

/// Appends a value so that it can't end the line or pass for another field: in quotes when it is empty or
/// holds blanks, quotes, '=' or anything that needs an escape. Escaped are control characters of ASCII and
/// Latin-1, Unicode line separators (\u0085), and bytes that aren't UTF-8 (\xff); other text stays readable.
void append_value(std::string& line, std::string_view value);

/// Appends a number with three decimals, or in the shortest form when it is very large.
void append_number(std::string& line, double number);

}  // namespace handoff::telemetry
