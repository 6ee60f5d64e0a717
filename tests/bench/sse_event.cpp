#include "sse_event.hpp"

#include <charconv>
#include <cstdio>

namespace bench {
namespace {

constexpr std::size_t kStampBegin = 26;
constexpr std::size_t kStampDigits = 20;

}  // namespace

void append_sse_event(std::string& out, std::uint64_t number, std::uint64_t stamp_ns, std::size_t bytes) {
  char head[80];
  const int length = std::snprintf(head, sizeof head, R"(data: {"n":%010llu,"t":%020llu,"p":")",
                                   static_cast<unsigned long long>(number % 10'000'000'000U),
                                   static_cast<unsigned long long>(stamp_ns));
  constexpr std::string_view kTail = "\"}\n\n";
  const std::size_t fixed = static_cast<std::size_t>(length) + kTail.size();
  out.append(head, static_cast<std::size_t>(length));
  out.append(bytes > fixed ? bytes - fixed : 0, static_cast<char>('a' + number % 26));
  out.append(kTail);
}

SseChecker::Result SseChecker::next(std::string_view& input) {
  if (partial_.empty()) {
    const std::size_t end = input.find("\n\n");
    if (end != std::string_view::npos) {
      const std::string_view event = input.substr(0, end + 2);
      input.remove_prefix(end + 2);
      return check(event);
    }
    partial_.assign(input);
    input = {};
    return {};
  }
  const std::size_t before = partial_.size();
  partial_.append(input);
  const std::size_t end = partial_.find("\n\n", before - 1);
  if (end == std::string::npos) {
    input = {};
    return {};
  }
  input.remove_prefix(end + 2 - before);
  partial_.resize(end + 2);
  const Result result = check(partial_);
  partial_.clear();
  return result;
}

SseChecker::Result SseChecker::check(std::string_view event) {
  Result result{.complete = true};
  if (event == kSseEnd) {
    result.is_end = true;
    result.intact = !ended_;
    ended_ = true;
    return result;
  }
  const bool has_stamp = event.size() > kStampBegin + kStampDigits;
  const bool stamp_read =
      has_stamp &&
      std::from_chars(event.data() + kStampBegin, event.data() + kStampBegin + kStampDigits, result.stamp_ns)
              .ec == std::errc();
  expected_.clear();
  append_sse_event(expected_, next_number_, result.stamp_ns, event_bytes_);
  result.intact = stamp_read && !ended_ && event == expected_;
  // One bad event is one error: go on from the number it carries, where it carries one.
  std::uint64_t carried = next_number_;
  if (has_stamp) std::from_chars(event.data() + 11, event.data() + 21, carried);
  next_number_ = carried + 1;
  return result;
}

}  // namespace bench
