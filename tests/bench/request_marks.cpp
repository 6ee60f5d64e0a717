#include "request_marks.hpp"

#include <algorithm>

namespace bench {
namespace {

constexpr std::size_t kLongestMember = 48;

// True when `text` starts with the rest of a quoted name, a colon and `true`.
bool is_true_member(std::string_view text, std::string_view name_end) {
  if (!text.starts_with(name_end)) return false;
  text.remove_prefix(name_end.size());
  const auto skip_blanks = [&text] {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  };
  skip_blanks();
  if (!text.starts_with(':')) return false;
  text.remove_prefix(1);
  skip_blanks();
  return text.starts_with("true");
}

}  // namespace

void RequestMarks::feed(std::string_view body) {
  if (!tail_.empty()) {
    tail_.append(body.substr(0, kLongestMember));
    scan(tail_);
  }
  scan(body);
  if (body.size() >= kLongestMember) {
    tail_.assign(body.substr(body.size() - kLongestMember));
  } else {
    if (tail_.empty()) tail_.assign(body);
    if (tail_.size() > kLongestMember) tail_.erase(0, tail_.size() - kLongestMember);
  }
}

void RequestMarks::reset() {
  asks_for_handoff_ = carries_handoff_ = asks_for_stream_ = false;
  tail_.clear();
}

void RequestMarks::scan(std::string_view text) {
  // Quotes are rare in the prompts sent here, so jumping from quote to quote runs at the speed of memchr.
  for (std::size_t at = text.find('"'); at != std::string_view::npos; at = text.find('"', at + 1)) {
    const std::string_view rest = text.substr(at + 1, kLongestMember);
    if (rest.starts_with("do_remote_")) {
      asks_for_handoff_ |= is_true_member(rest.substr(10), "decode\"");
      carries_handoff_ |= is_true_member(rest.substr(10), "prefill\"");
    } else if (rest.starts_with("stream\"")) {
      asks_for_stream_ |= is_true_member(rest, "stream\"");
    }
  }
}

}  // namespace bench
