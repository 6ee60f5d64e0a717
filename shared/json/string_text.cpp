#include "shared/json/string_text.hpp"

#include <cstddef>
#include <optional>

#include "shared/json/utf8.hpp"
#include "shared/json/value_skip.hpp"

namespace handoff::json {
namespace {

constexpr std::size_t kUnicodeEscape = 6;  // \uXXXX
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::optional<char32_t> hex_value(char c) {
  if (c >= '0' && c <= '9') return static_cast<char32_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<char32_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<char32_t>(c - 'A' + 10);
  return std::nullopt;
}

/// The code unit of the \uXXXX that starts at `at`.
std::optional<char32_t> code_unit_at(std::string_view text, std::size_t at) {
  if (text.size() - at < kUnicodeEscape || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  char32_t unit = 0;
  for (std::size_t i = 2; i < kUnicodeEscape; ++i) {
    const auto digit = hex_value(text[at + i]);
    if (!digit) return std::nullopt;
    unit = unit * 16 + *digit;
  }
  return unit;
}

bool is_high_surrogate(char32_t unit) {
  return unit >= 0xD800 && unit <= 0xDBFF;
}
bool is_low_surrogate(char32_t unit) {
  return unit >= 0xDC00 && unit <= 0xDFFF;
}

/// Decodes one or two \uXXXX at `at`; returns how many bytes they took, 0 when they are malformed.
std::size_t append_unicode_escape(std::string& out, std::string_view text, std::size_t at) {
  const auto unit = code_unit_at(text, at);
  if (!unit) return 0;
  if (is_high_surrogate(*unit)) {
    const auto low = code_unit_at(text, at + kUnicodeEscape);
    if (low && is_low_surrogate(*low)) {
      append_code_point(out, 0x10000 + ((*unit - 0xD800) << 10U) + (*low - 0xDC00));
      return 2 * kUnicodeEscape;
    }
  }
  append_code_point(out, *unit);
  return kUnicodeEscape;
}

std::optional<char> short_escape(char c) {
  switch (c) {
    case '"':
    case '\\':
    case '/':
      return c;
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return std::nullopt;
  }
}

void append_control(std::string& out, char c) {
  switch (c) {
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      constexpr std::string_view kDigits = "0123456789abcdef";
      out += "\\u00";
      out += kDigits[static_cast<unsigned char>(c) >> 4U];
      out += kDigits[static_cast<unsigned char>(c) & 15U];
  }
}

}  // namespace

bool append_unescaped(std::string& out, std::string_view inside) {
  std::size_t at = 0;
  while (at < inside.size()) {
    const std::size_t backslash = inside.find('\\', at);
    if (backslash == std::string_view::npos) break;
    out.append(inside, at, backslash - at);
    if (backslash + 1 == inside.size()) return false;
    if (inside[backslash + 1] == 'u') {
      const std::size_t taken = append_unicode_escape(out, inside, backslash);
      if (taken == 0) return false;
      at = backslash + taken;
    } else {
      const auto meaning = short_escape(inside[backslash + 1]);
      if (!meaning) return false;
      out += *meaning;
      at = backslash + 2;
    }
  }
  out.append(inside, at);
  return true;
}

bool decode_string(std::string_view value, std::string& out) {
  out.clear();
  if (value.size() < 2 || value.front() != '"') return false;
  if (find_closing_quote(value, 1) != value.size() - 1) return false;
  return append_unescaped(out, value.substr(1, value.size() - 2));
}

bool string_is_empty(std::string_view value) {
  return value == "\"\"";
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  std::size_t copied = 0;
  std::size_t at = 0;
  const auto flush = [&] { out.append(text, copied, at - copied); };
  while (at < text.size()) {
    const char c = text[at];
    const std::size_t length = utf8_sequence_length(text, at);
    if (length != 0 && c != '"' && c != '\\' && (length > 1 || static_cast<unsigned char>(c) >= 0x20)) {
      at += length;
      continue;
    }
    flush();
    if (length == 0) {
      out += kReplacement;
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      append_control(out, c);
    }
    copied = ++at;
  }
  flush();
  out += '"';
}

}  // namespace handoff::json
