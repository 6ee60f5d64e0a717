#include "backends/json_text/values.hpp"

namespace handoff::json_text {
namespace {

bool ends_scalar(char c) {
  return c == ',' || c == ']' || c == '}' || c == ':' || c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/// Steps over one value of any kind; empty when none begins here.
std::string_view take_value(std::string_view text, Cursor& at) {
  const char first = at.next_token();
  const auto begin = at.position();
  if (first == '"') {
    at.skip_string();
  } else if (first == '{' || first == '[') {
    at.skip_nested();
  } else {
    while (!at.at_end() && !ends_scalar(at.look())) at.step();
  }
  return text.substr(begin, at.position() - begin);
}

}  // namespace

Members::Members(std::string_view object) : text_(object), at_(object), more_(at_.take('{')) {}

std::optional<Members::Member> Members::next() {
  if (!more_ || at_.next_token() != '"') return std::nullopt;
  const auto key = take_value(text_, at_);
  if (key.size() < 2 || !at_.take(':')) return std::nullopt;
  const auto value = take_value(text_, at_);
  if (value.empty()) return std::nullopt;
  more_ = at_.take(',');
  return Member{key.substr(1, key.size() - 2), value};
}

std::optional<std::string_view> find_member(std::string_view object, std::string_view name) {
  return find_members(object, std::array{name})[0];
}

std::optional<std::string_view> plain_string(std::string_view value) {
  if (value.size() < 2 || value.front() != '"' || value.back() != '"') return std::nullopt;
  const auto inside = value.substr(1, value.size() - 2);
  if (inside.find('\\') != std::string_view::npos) return std::nullopt;
  return inside;
}

Items::Items(std::string_view list) : text_(list), at_(list), is_list_(at_.take('[')) {}

std::optional<std::string_view> Items::next() {
  if (!is_list_) return std::nullopt;
  if (!first_ && !at_.take(',')) return std::nullopt;
  first_ = false;
  if (at_.next_token() == ']') return std::nullopt;
  const auto value = take_value(text_, at_);
  if (value.empty()) return std::nullopt;
  return value;
}

}  // namespace handoff::json_text
