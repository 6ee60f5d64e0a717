#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace handoff::sglang {

/// Cuts a stream of server-sent events at the blank lines, however it was cut on its way.
class EventReader {
 public:
  /// An event of more bytes than `most` makes is_overlong() true, and nothing is found any more.
  explicit EventReader(std::size_t most) : most_(most) {}

  void feed(std::string_view bytes);
  /// The next whole event with its blank line; valid until the next call of this object.
  std::optional<std::string_view> next();
  bool is_overlong() const { return overlong_; }
  /// What has come of an event that is not whole.
  std::string_view rest() const { return std::string_view(buffer_).substr(at_); }

 private:
  std::size_t most_;
  std::string buffer_;
  std::size_t at_ = 0;
  bool overlong_ = false;
};

/// The value of an event's `data:` field, if there is exactly one, among whatever other fields; a view of
/// `event`.
std::optional<std::string_view> event_data(std::string_view event);

bool is_event_stream(std::optional<std::string_view> content_type);

}  // namespace handoff::sglang
