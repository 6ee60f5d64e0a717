#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace handoff::telemetry {

/// Lines on their way to a descriptor that may stop taking them, as a stalled log collector does. A line is
/// never waited for: what the descriptor doesn't take at once stays in memory, up to a bound; beyond it,
/// lines are dropped, counted, and the count is told in a line of its own once there is room.
///
/// Doesn't own the descriptor. Not thread-safe: its sink holds a lock.
class LogBuffer {
 public:
  static constexpr std::size_t kMaxBytes = 1024 * 1024;
  static constexpr std::size_t kFlushBytes = 16 * 1024;
  /// A pipe that polls as writable takes this much at once (PIPE_BUF), and never mixes it with another
  /// writer's.
  static constexpr std::size_t kPieceBytes = 4096;

  explicit LogBuffer(int descriptor);

  /// Adds a line that ends with a line feed. `note_of_drops`, called with a count, must give the line that
  /// tells of lines dropped before.
  void append(std::string_view line, std::string (*note_of_drops)(std::uint64_t));

  /// Writes what the descriptor takes without waiting.
  void flush();

  /// Whether so much has come since the last flush that another is worth its system calls.
  bool wants_flush() const { return bytes_since_flush_ >= kFlushBytes; }

  std::size_t size() const { return text_.size() - begin_; }

 private:
  /// One piece; false when the descriptor takes no more.
  bool write_piece();
  void discard();
  std::string_view next_piece() const;

  int descriptor_;
  bool is_socket_;
  std::string text_;
  std::size_t begin_ = 0;
  std::size_t bytes_since_flush_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace handoff::telemetry
