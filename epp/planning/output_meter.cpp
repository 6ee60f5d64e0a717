#include "epp/planning/output_meter.hpp"

#include <charconv>

namespace handoff::epp {
namespace {

constexpr std::size_t kTail = 4096;
constexpr std::string_view kData = "data:";
constexpr std::string_view kDone = "data: [DONE]";

std::optional<std::uint64_t> number_after(std::string_view text, std::string_view name) {
  const auto at = text.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  auto begin = at + name.size();
  while (begin < text.size() && (text[begin] == ' ' || text[begin] == ':')) ++begin;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() + text.size()) return std::nullopt;
  // 1.5 and "7" are no counts.
  if (*end == '.' || *end == 'e' || *end == 'E') return std::nullopt;
  return value;
}

}  // namespace

void OutputMeter::on_bytes(std::string_view bytes) {
  if (event_stream_) count_events(bytes);
  keep(bytes);
}

void OutputMeter::count_events(std::string_view bytes) {
  while (!bytes.empty()) {
    if (!line_decided_) {
      const auto missing = kDone.size() - line_start_.size();
      const auto piece = bytes.substr(0, missing);
      const auto line_end = piece.find('\n');
      line_start_.append(piece.substr(0, line_end));
      const bool complete = line_end != std::string_view::npos || line_start_.size() == kDone.size();
      if (!complete) return;
      if (line_start_.starts_with(kData) && line_start_ != kDone) ++events_;
      line_decided_ = true;
    }
    const auto line_end = bytes.find('\n');
    if (line_end == std::string_view::npos) return;
    bytes.remove_prefix(line_end + 1);
    line_start_.clear();
    line_decided_ = false;
  }
}

void OutputMeter::keep(std::string_view bytes) {
  if (bytes.size() >= kTail) {
    tail_.assign(bytes.substr(bytes.size() - kTail));
    return;
  }
  if (tail_.size() + bytes.size() > 2 * kTail) tail_.erase(0, tail_.size() - kTail);
  tail_.append(bytes);
}

Usage OutputMeter::usage() const {
  const std::string_view text = tail_;
  // Events before the last one say "usage":null.
  auto at = text.size();
  while (at != 0) {
    at = text.rfind(R"("usage")", at - 1);
    if (at == std::string_view::npos) return {};
    const std::string_view report = text.substr(at);
    const auto brace = report.find_first_not_of(" :", std::string_view(R"("usage")").size());
    if (brace == std::string_view::npos || report[brace] != '{') continue;
    return {.prompt_tokens = number_after(report, R"("prompt_tokens")"),
            .completion_tokens = number_after(report, R"("completion_tokens")"),
            .cached_tokens = number_after(report, R"("cached_tokens")")};
  }
  return {};
}

}  // namespace handoff::epp
