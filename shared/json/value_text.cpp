#include "shared/json/value_text.hpp"

#include <charconv>
#include <cstddef>

#include "shared/json/value_skip.hpp"

namespace handoff::json {
namespace {

std::size_t skip_digits(std::string_view text, std::size_t at) {
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  return at;
}

/// One past the `-?(0|[1-9][0-9]*)` that `text` starts with, 0 when it doesn't.
std::size_t integer_end(std::string_view text) {
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  const std::size_t end = skip_digits(text, first);
  if (end == first) return 0;
  return text[first] == '0' ? first + 1 : end;
}

bool is_number(std::string_view text) {
  std::size_t at = integer_end(text);
  if (at == 0) return false;
  if (at < text.size() && text[at] == '.') {
    const std::size_t fraction = skip_digits(text, at + 1);
    if (fraction == at + 1) return false;
    at = fraction;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const std::size_t exponent = skip_digits(text, at);
    if (exponent == at) return false;
    at = exponent;
  }
  return at == text.size();
}

}  // namespace

ValueKind kind_of(std::string_view value) {
  switch (value.empty() ? '\0' : value.front()) {
    case '{':
      return ValueKind::object;
    case '[':
      return ValueKind::array;
    case '"':
      return ValueKind::string;
    case 't':
      return value == "true" ? ValueKind::literal_true : ValueKind::other;
    case 'f':
      return value == "false" ? ValueKind::literal_false : ValueKind::other;
    case 'n':
      return value == "null" ? ValueKind::null : ValueKind::other;
    default:
      return is_number(value) ? ValueKind::number : ValueKind::other;
  }
}

bool is_empty_object(std::string_view value) {
  if (value.size() < 2 || value.front() != '{' || value.back() != '}') return false;
  return skip_space(value, 1) == value.size() - 1;
}

std::optional<std::int64_t> parse_int64(std::string_view value) {
  if (value.empty() || integer_end(value) != value.size()) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size()) return std::nullopt;
  return number;
}

}  // namespace handoff::json
