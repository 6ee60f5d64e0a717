#include "shared/telemetry/level.hpp"

#include <algorithm>
#include <utility>

namespace handoff::telemetry {
namespace {

constexpr std::pair<std::string_view, Level> kNames[] = {
    {"trace", Level::trace}, {"debug", Level::debug}, {"info", Level::info},   {"warn", Level::warn},
    {"error", Level::error}, {"off", Level::off},     {"warning", Level::warn}};

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::optional<Level> parse_level(std::string_view name) {
  for (const auto& [word, level] : kNames) {
    const auto same = [](char a, char b) { return lower(a) == b; };
    if (std::equal(name.begin(), name.end(), word.begin(), word.end(), same)) return level;
  }
  return std::nullopt;
}

std::string_view to_text(Level level) {
  for (const auto& [word, named] : kNames) {
    if (named == level) return word;
  }
  return "unknown";
}

}  // namespace handoff::telemetry
