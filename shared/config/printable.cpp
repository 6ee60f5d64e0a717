#include "shared/config/printable.hpp"

#include <algorithm>

#include "shared/json/utf8.hpp"

namespace handoff::config {
namespace {

constexpr std::size_t kQuotedBytes = 80;

/// How many single-character edits lie between two names.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
}

}  // namespace

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = is_control(text[at]) ? 0 : json::utf8_sequence_length(text, at);
    if (length != 0) {
      out.append(text, at, length);
      at += length;
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[at++]);
    out += "\\x";
    out += kDigits[byte >> 4U];
    out += kDigits[byte & 15U];
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  if (text.size() <= kQuotedBytes) return '"' + printable(text) + '"';
  std::size_t end = kQuotedBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return '"' + printable(text.substr(0, end)) + "\"...";
}

std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates,
                                   std::size_t most) {
  const std::size_t usual = name.size() < 4 ? 1 : std::max<std::size_t>(2, name.size() / 4);
  const std::size_t limit = std::min(usual, most);
  std::size_t best_distance = limit + 1;
  std::optional<std::string> best;
  for (const auto& candidate : candidates) {
    const std::size_t difference =
        std::max(candidate.size(), name.size()) - std::min(candidate.size(), name.size());
    if (difference > limit) continue;  // also bounds the work for a hostile length
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string join(const std::vector<std::string>& items, std::string_view separator) {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += separator;
    out += item;
  }
  return out;
}

}  // namespace handoff::config
