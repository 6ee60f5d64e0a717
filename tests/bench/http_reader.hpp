// Finds where HTTP/1.1 messages begin and end, and nothing else: cheap enough not to disturb what is
// measured.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bench {

// Pull parser without I/O. The caller hands in received bytes and asks for one step at a time; each step
// takes what it used off the front of the input.
class HttpReader {
 public:
  enum class Role { requests, responses };
  enum class Kind { need_more, head, body, end, malformed };
  struct Step {
    Kind kind;
    std::string_view body;  // for Kind::body: a part of the input
  };

  explicit HttpReader(Role role) : role_(role) {}

  Step next(std::string_view& input);

  // Start line and header lines of the current message; valid from its head step to its end step.
  std::string_view head() const { return head_; }
  // Of the current response; 0 when the status line is odd.
  int status() const { return status_; }
  // True while the message is known to end only when the peer closes.
  bool until_close() const { return state_ == State::until_close; }
  bool between_messages() const { return state_ == State::head && head_.empty(); }
  bool keeps_alive() const { return keeps_alive_; }

 private:
  enum class State {
    head,
    length,
    chunk_size,
    chunk_data,
    chunk_end,
    trailer,
    until_close,
    finished,
    broken
  };

  Step read_head(std::string_view& input);
  Step read_chunked(std::string_view& input);
  bool interpret_head();
  // Collects one line across inputs; true once it is complete, without its line end.
  bool read_line(std::string_view& input);
  Step broken();

  Role role_;
  State state_ = State::head;
  std::string head_;
  std::string line_;
  std::uint64_t remaining_ = 0;
  int status_ = 0;
  bool keeps_alive_ = true;
};

}  // namespace bench
