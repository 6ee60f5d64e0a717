#include "backends/sglang/server_sent_events.hpp"

#include <algorithm>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sglang {
namespace {

constexpr std::string_view kField = "data:";

/// Where the event that begins `text` ends, its blank line included; npos: not yet.
std::size_t event_end(std::string_view text) {
  for (auto at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
    auto next = at + 1;
    if (next < text.size() && text[next] == '\r') ++next;
    if (next < text.size() && text[next] == '\n') return next + 1;
  }
  return std::string_view::npos;
}

}  // namespace

void EventReader::feed(std::string_view bytes) {
  if (overlong_) return;
  buffer_.erase(0, at_);
  at_ = 0;
  buffer_.append(bytes);
}

std::optional<std::string_view> EventReader::next() {
  if (overlong_) return std::nullopt;
  const auto left = rest();
  const auto end = event_end(left);
  if (end != std::string_view::npos) {
    at_ += end;
    return left.substr(0, end);
  }
  if (left.size() > most_) {
    overlong_ = true;
    buffer_.clear();
    buffer_.shrink_to_fit();
    at_ = 0;
  }
  return std::nullopt;
}

std::optional<std::string_view> event_data(std::string_view event) {
  std::optional<std::string_view> data;
  while (!event.empty()) {
    const auto end = event.find('\n');
    auto line = event.substr(0, end);
    event.remove_prefix(end == std::string_view::npos ? event.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with(kField)) continue;
    if (data) return std::nullopt;
    line.remove_prefix(kField.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    data = line;
  }
  return data;
}

bool is_event_stream(std::optional<std::string_view> content_type) {
  constexpr std::string_view kType = "text/event-stream";
  return content_type && sdk::equals_ignoring_case(content_type->substr(0, kType.size()), kType);
}

}  // namespace handoff::sglang
