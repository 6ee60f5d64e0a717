// The one event format that the fake engine writes and the SSE client checks byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bench {

constexpr std::string_view kSseEnd = "data: [DONE]\n\n";

// `data: {"n":0000000007,"t":<20 digits of CLOCK_MONOTONIC ns>,"p":"hhh..."}\n\n`, `bytes` long, but never
// shorter than its fixed part. The padding's letter follows from n, so a lost or repeated piece shows.
void append_sse_event(std::string& out, std::uint64_t number, std::uint64_t stamp_ns, std::size_t bytes);

// Follows one stream. Expects event 0, 1, 2 … and then the end event.
class SseChecker {
 public:
  struct Result {
    bool complete = false;  // an event was cut off the front of the input
    bool intact = false;
    bool is_end = false;
    std::uint64_t stamp_ns = 0;
  };

  explicit SseChecker(std::size_t event_bytes) : event_bytes_(event_bytes) {}

  // Takes at most one event; call again until nothing is complete.
  Result next(std::string_view& input);

  std::uint64_t events() const { return next_number_; }
  bool ended() const { return ended_; }

 private:
  Result check(std::string_view event);

  std::size_t event_bytes_;
  std::uint64_t next_number_ = 0;
  bool ended_ = false;
  std::string partial_;
  std::string expected_;
};

}  // namespace bench
