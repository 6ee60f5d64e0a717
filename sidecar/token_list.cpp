#include "sidecar/token_list.hpp"

#include "sidecar/ascii.hpp"

namespace handoff::sidecar {
namespace {

/// The first comma outside quoted strings, or the end.
std::size_t element_end(std::string_view text) {
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (text[i] == '\\' && quoted) ++i;
    if (text[i] == ',' && !quoted) return i;
  }
  return text.size();
}

}  // namespace

void TokenList::Iterator::advance() {
  while (!rest_.empty()) {
    const auto end = element_end(rest_);
    element_ = trim_blanks(rest_.substr(0, end));
    rest_.remove_prefix(end == rest_.size() ? end : end + 1);
    if (!element_.empty()) return;
  }
  at_end_ = true;
}

bool contains_token(std::string_view value, std::string_view token) {
  for (const std::string_view element : TokenList(value)) {
    if (equals_ignoring_case(element, token)) return true;
  }
  return false;
}

}  // namespace handoff::sidecar
