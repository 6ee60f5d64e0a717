#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace handoff::json_text {

/// Waits for the first data of a stream of server-sent events, which tells whether it is an error in spite of
/// its status. One per stream.
class FirstEvent {
 public:
  /// Takes the next bytes of the stream. True, once, when the first event is complete or too large to be one
  /// that matters.
  bool take(std::string_view bytes);
  /// What follows "data:" in the first such line; empty if there was none.
  std::string_view data() const;

 private:
  static constexpr std::size_t kLimit = 16 * 1024;
  std::string begin_;
  bool over_ = false;
};

}  // namespace handoff::json_text
