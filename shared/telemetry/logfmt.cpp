#include "shared/telemetry/logfmt.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "shared/json/utf8.hpp"

namespace handoff::telemetry {
namespace {

/// Larger numbers have no use for decimals.
constexpr double kReadable = 1e12;
constexpr std::string_view kEllipsis = "…";
constexpr std::string_view kHexDigits = "0123456789abcdef";

constexpr bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.';
}

/// ASCII that needs neither quotes nor an escape.
constexpr bool is_bare(char c) {
  return c > ' ' && c < 0x7F && c != '"' && c != '\\' && c != '=';
}

// Each byte of each line is asked about, so the answers are looked up.
template <bool (*Is)(char)>
constexpr std::array<bool, 256> make_table() {
  std::array<bool, 256> table{};
  for (unsigned c = 0; c < table.size(); ++c) table[c] = Is(static_cast<char>(c));
  return table;
}
constexpr auto kNameBytes = make_table<is_name_byte>();
constexpr auto kBareBytes = make_table<is_bare>();

std::size_t leading(std::string_view text, const std::array<bool, 256>& table) {
  std::size_t count = 0;
  while (count < text.size() && table[static_cast<unsigned char>(text[count])]) ++count;
  return count;
}

void append_hex(std::string& line, std::string_view prefix, unsigned value) {
  line += prefix;
  line += kHexDigits[(value >> 4U) & 15U];
  line += kHexDigits[value & 15U];
}

void append_ascii(std::string& line, char c) {
  switch (c) {
    case '\n':
      line += "\\n";
      return;
    case '\r':
      line += "\\r";
      return;
    case '\t':
      line += "\\t";
      return;
    case '"':
    case '\\':
      line += '\\';
      line += c;
      return;
    default:
      if (c >= ' ' && c != 0x7F) {
        line += c;
      } else {
        append_hex(line, "\\u00", static_cast<unsigned char>(c));
      }
  }
}

/// Sequences that a terminal or a log reader may take for a command or for a line's end.
bool append_escaped_sequence(std::string& line, std::string_view sequence) {
  if (sequence.size() == 2 && sequence[0] == '\xC2' && static_cast<unsigned char>(sequence[1]) < 0xA0) {
    append_hex(line, "\\u00", static_cast<unsigned char>(sequence[1]));
    return true;
  }
  if (sequence == "\u2028") {
    line += "\\u2028";
    return true;
  }
  if (sequence == "\u2029") {
    line += "\\u2029";
    return true;
  }
  return false;
}

void append_quoted(std::string& line, std::string_view value) {
  line += '"';
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t length = json::utf8_sequence_length(value, at);
    const auto sequence = value.substr(at, length);
    if (length == 0) {
      append_hex(line, "\\x", static_cast<unsigned char>(value[at]));
    } else if (length == 1) {
      append_ascii(line, value[at]);
    } else if (!append_escaped_sequence(line, sequence)) {
      line += sequence;
    }
    at += length == 0 ? 1 : length;
  }
}

/// Cuts before the first byte of the character that would cross the limit.
std::string_view cut(std::string_view value) {
  std::size_t end = kValueBytes;
  while (end + 3 > kValueBytes && (static_cast<unsigned char>(value[end]) & 0xC0U) == 0x80U) --end;
  return value.substr(0, end);
}

}  // namespace

void append_name(std::string& line, std::string_view name) {
  while (true) {
    const auto fine = leading(name, kNameBytes);
    line.append(name, 0, fine);
    if (fine == name.size()) return;
    line += '_';
    name.remove_prefix(fine + 1);
  }
}

void append_value(std::string& line, std::string_view value) {
  const bool too_long = value.size() > kValueBytes;
  if (too_long) value = cut(value);
  const auto bare = leading(value, kBareBytes);
  if (bare == value.size() && bare != 0 && !too_long) {
    line += value;
    return;
  }
  append_quoted(line, value);
  if (too_long) line += kEllipsis;
  line += '"';
}

void append_number(std::string& line, double number) {
  std::array<char, 64> digits{};
  char* const first = digits.data();
  char* const last = first + digits.size();
  if (!(std::abs(number) < kReadable)) {
    line.append(first, std::to_chars(first, last, number).ptr);
    return;
  }
  // By way of a whole number, which is several times faster than the exact decimal expansion.
  const auto thousandths = static_cast<std::uint64_t>(std::abs(number) * 1000 + 0.5);
  char* at = first;
  if (number < 0 && thousandths != 0) *at++ = '-';
  at = std::to_chars(at, last, thousandths / 1000).ptr;
  const auto fraction = thousandths % 1000;
  *at++ = '.';
  *at++ = static_cast<char>('0' + fraction / 100);
  *at++ = static_cast<char>('0' + fraction / 10 % 10);
  *at++ = static_cast<char>('0' + fraction % 10);
  line.append(first, at);
}

}  // namespace handoff::telemetry
