#include "backends/json_text/first_event.hpp"

namespace handoff::json_text {

bool FirstEvent::take(std::string_view bytes) {
  if (over_) return false;
  begin_ += bytes.substr(0, kLimit);
  // Lines may end in CR LF; what comes before the first data is no event.
  const auto at = begin_.find("data:");
  const auto end = at == std::string::npos ? at : begin_.find('\n', at);
  over_ = end != std::string::npos || begin_.size() >= kLimit;
  return over_;
}

std::string_view FirstEvent::data() const {
  const std::string_view text = begin_;
  const auto at = text.find("data:");
  if (at == std::string_view::npos || (at > 0 && text[at - 1] != '\n')) return {};
  const auto line = text.substr(at + 5);
  return line.substr(0, line.find_first_of("\r\n"));
}

}  // namespace handoff::json_text
