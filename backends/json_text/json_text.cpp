#include "backends/json_text/json_text.hpp"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "backends/json_text/integer_list.hpp"

namespace handoff::json_text {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr std::size_t kEscapeSize = 6;  // of a character's number: a backslash, a u, four digits

}  // namespace

char Cursor::next_token() {
  while (is_space(look())) step();
  return look();
}

bool Cursor::only_space_left() {
  next_token();
  return at_end();
}

bool Cursor::take(char c) {
  if (next_token() != c) return false;
  step();
  return true;
}

void Cursor::skip_string() {
  step();
  while (!at_end()) {
    const auto quote = text_.find('"', at_);
    if (quote == std::string_view::npos) break;
    std::size_t backslashes = 0;
    while (quote - backslashes > at_ && text_[quote - backslashes - 1] == '\\') ++backslashes;
    at_ = quote + 1;
    if (backslashes % 2 == 0) return;
  }
  at_ = text_.size();
}

void Cursor::skip_nested() {
  std::size_t depth = 0;
  while (!at_end()) {
    const char c = look();
    if (c == '"') {
      skip_string();
      continue;
    }
    step();
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && --depth == 0) return;
  }
}

bool Cursor::take_plain_integer() {
  if (!is_digit(next_token())) return false;
  const bool zero = look() == '0';
  step();
  if (zero) return !is_digit(look());
  while (is_digit(look())) step();
  return true;
}

bool Cursor::take_plain_integers() {
  if (next_token() != '[') return false;
  const auto close = text_.find(']', at_);
  if (close == std::string_view::npos) return false;
  if (is_compact_integer_list(text_.substr(at_, close + 1 - at_))) {
    at_ = close + 1;
    return true;
  }
  step();
  if (take(']')) return true;
  do {
    if (!take_plain_integer()) return false;
  } while (take(','));
  return take(']');
}

bool spells(std::string_view spelled, std::string_view text) {
  if (spelled == text) return true;
  if (spelled.find('\\') == std::string_view::npos) return false;
  std::size_t at = 0;
  for (const char wanted : text) {
    const auto left = spelled.substr(std::min(at, spelled.size()));
    if (left.empty()) return false;
    if (left[0] != '\\') {
      if (left[0] != wanted) return false;
      ++at;
      continue;
    }
    if (left.size() < kEscapeSize || left[1] != 'u') return false;
    unsigned code = 0;
    const auto* end = left.data() + kEscapeSize;
    const auto parsed = std::from_chars(left.data() + 2, end, code, 16);
    if (parsed.ec != std::errc{} || parsed.ptr != end || code != static_cast<unsigned char>(wanted))
      return false;
    at += kEscapeSize;
  }
  return at == spelled.size();
}

bool reads_as_one(std::string_view value) {
  if (value.size() > 2 && value.front() == '"' && value.back() == '"') {
    value = value.substr(1, value.size() - 2);
  }
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc{} && end == value.data() + value.size() && number == 1.0;
}

bool reads_as_true(std::string_view value) {
  if (value == "true") return true;
  if (value.size() < 2 || value.front() != '"') return reads_as_one(value);
  const auto word = value.substr(1, value.size() - 2);
  for (const std::string_view yes : {"true", "t", "yes", "y", "on", "1"}) {
    const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + ('a' - 'A') : a) == b; };
    if (std::equal(word.begin(), word.end(), yes.begin(), yes.end(), same) || spells(word, yes)) return true;
  }
  return false;
}

std::int64_t plain_integer(std::string_view value, std::int64_t most) {
  if (value.empty() || !is_digit(value.front()) || (value.size() > 1 && value.front() == '0')) return -1;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = error == std::errc{} && end == value.data() + value.size();
  return whole && number <= most ? number : -1;
}

bool is_empty_object(std::string_view value) {
  Cursor cursor(value);
  return cursor.take('{') && cursor.take('}');
}

PromptCount count_prompts(std::string_view value) {
  Cursor cursor(value);
  const char first = cursor.next_token();
  if (first == '\0' || value == "null") return PromptCount::none;
  if (first != '[') return PromptCount::one;
  cursor.step();
  const char item = cursor.next_token();
  if (item == '"') {
    cursor.skip_string();
  } else if (item == '[' || item == '{') {
    cursor.skip_nested();
  } else {
    return PromptCount::one;  // token ids, or something that the engine refuses
  }
  return cursor.take(',') ? PromptCount::several : PromptCount::one;
}

}  // namespace handoff::json_text
