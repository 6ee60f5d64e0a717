// What the fake engine wants to know about a request body, found without keeping the body.
#pragma once

#include <string>
#include <string_view>

namespace bench {

// Looks for the P/D members that a sidecar adds and for a streaming request. Blanks around the colon are
// allowed.
class RequestMarks {
 public:
  void feed(std::string_view body);
  void reset();

  bool asks_for_handoff() const { return asks_for_handoff_; }  // "do_remote_decode":true
  bool carries_handoff() const { return carries_handoff_; }    // "do_remote_prefill":true
  bool asks_for_stream() const { return asks_for_stream_; }    // "stream":true

 private:
  void scan(std::string_view text);

  bool asks_for_handoff_ = false;
  bool carries_handoff_ = false;
  bool asks_for_stream_ = false;
  std::string tail_;  // the end of what was fed, for a member cut in two
};

}  // namespace bench
