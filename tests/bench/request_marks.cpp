#include "request_marks.hpp"

#include <algorithm>

namespace bench {
namespace {

constexpr std::size_t kLongestMember = 64;

// The value behind `name` and its closing quote, where `text` starts with those; empty where it is another
// member or its end is not there. Lists and objects are not looked for.
std::string_view value_of(std::string_view text, std::string_view name) {
  if (!text.starts_with(name) || !text.substr(name.size()).starts_with('"')) return {};
  text.remove_prefix(name.size() + 1);
  const auto skip_blanks = [&text] {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  };
  skip_blanks();
  if (!text.starts_with(':')) return {};
  text.remove_prefix(1);
  skip_blanks();
  const std::size_t end = text.find_first_of(",} \t\r\n");
  return end == std::string_view::npos ? std::string_view{} : text.substr(0, end);
}

}  // namespace

void RequestMarks::feed(std::string_view body) {
  body_bytes_ += body.size();
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
  body_bytes_ = 0;
  asks_for_stream_ = asks_for_one_token_ = false;
  asks_for_handoff_ = carries_handoff_ = asks_for_context_ = carries_context_ = false;
  pairing_id_.clear();
  tail_.clear();
}

void RequestMarks::scan(std::string_view text) {
  // Quotes are rare in the prompts sent here, so jumping from quote to quote runs at the speed of memchr.
  for (std::size_t at = text.find('"'); at != std::string_view::npos; at = text.find('"', at + 1)) {
    const std::string_view rest = text.substr(at + 1, kLongestMember);
    asks_for_handoff_ |= value_of(rest, "do_remote_decode") == "true";
    carries_handoff_ |= value_of(rest, "do_remote_prefill") == "true";
    asks_for_stream_ |= value_of(rest, "stream") == "true";
    asks_for_one_token_ |= value_of(rest, "max_tokens") == "1";
    asks_for_context_ |= value_of(rest, "request_type") == R"("context_only")";
    carries_context_ |= value_of(rest, "request_type") == R"("generation_only")";
    for (const std::string_view name :
         {"bootstrap_room", "disagg_request_id", "transfer_id", "kv_request_id"}) {
      if (const auto value = value_of(rest, name); !value.empty()) pairing_id_ = value;
    }
  }
}

}  // namespace bench
