// ASCII rules of HTTP, independent of the locale.
#pragma once

#include <cstddef>
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

/// `text` without blanks at either end.
constexpr std::string_view trim_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

constexpr bool equals_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (ascii_lower(a[i]) != ascii_lower(b[i])) return false;
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
