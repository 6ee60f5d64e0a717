// ASCII rules of HTTP, independent of the locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace handoff::sidecar {

constexpr char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

constexpr bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}

constexpr bool is_ascii_alpha(char c) {
  const char lower = ascii_lower(c);
  return lower >= 'a' && lower <= 'z';
}

constexpr bool is_ascii_hex_digit(char c) {
  const char lower = ascii_lower(c);
  return is_ascii_digit(c) || (lower >= 'a' && lower <= 'f');
}

/// True for the blanks that HTTP allows around values (OWS).
constexpr bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

/// RFC 9110 token, of which methods and header names are made.
constexpr bool is_http_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  for (const char c : text) {
    if (!is_ascii_digit(c) && !is_ascii_alpha(c) && kMarks.find(c) == std::string_view::npos) return false;
  }
  return !text.empty();
}

/// `text` without blanks at either end.
constexpr std::string_view trim_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Eight characters at once; bytes above ASCII stay as they are.
constexpr std::uint64_t ascii_lower_8(std::uint64_t chars) {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  const std::uint64_t seven_bits = chars & (kOnes * 0x7f);
  // The additions carry into bit 7 of each byte, and no further.
  const std::uint64_t from_a = seven_bits + kOnes * (0x80 - 'A');
  const std::uint64_t beyond_z = seven_bits + kOnes * (0x80 - 'Z' - 1);
  const std::uint64_t capitals = from_a & ~beyond_z & ~chars & (kOnes * 0x80);
  return chars | capitals >> 2;
}

/// Runs for every header field, hence eight characters at a time.
inline bool equals_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  std::size_t at = 0;
  for (; a.size() - at >= 8; at += 8) {
    std::uint64_t chars_a;
    std::uint64_t chars_b;
    std::memcpy(&chars_a, a.data() + at, 8);
    std::memcpy(&chars_b, b.data() + at, 8);
    if (ascii_lower_8(chars_a) != ascii_lower_8(chars_b)) return false;
  }
  for (; at < a.size(); ++at) {
    if (ascii_lower(a[at]) != ascii_lower(b[at])) return false;
  }
  return true;
}

/// A copy of `text` in lower case.
inline std::string to_ascii_lower(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) c = ascii_lower(c);
  return lowered;
}

}  // namespace handoff::sidecar
