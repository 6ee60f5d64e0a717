#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace handoff::epp {

// What an engine says a request cost.
struct Usage {
  std::optional<std::uint64_t> prompt_tokens;
  std::optional<std::uint64_t> completion_tokens;
  std::optional<std::uint64_t> cached_tokens;
};

// Watches an answer go by: counts the events of a stream (about one per token), and finds the usage report at
// the end of any answer. Keeps at most a few kilobytes, however long the answer is.
//
// Owner and thread: the request's stream.
class OutputMeter {
 public:
  void start(bool event_stream) { event_stream_ = event_stream; }
  void on_bytes(std::string_view bytes);

  // Events with data so far, without the closing one.
  std::uint64_t events() const { return events_; }
  // The last report in what was kept. Members of a wrong type are left out.
  Usage usage() const;

 private:
  void count_events(std::string_view bytes);
  void keep(std::string_view bytes);

  bool event_stream_ = false;
  std::uint64_t events_ = 0;
  std::string line_start_;  // of the line that isn't complete, as far as it matters
  bool line_decided_ = false;
  std::string tail_;
};

}  // namespace handoff::epp
