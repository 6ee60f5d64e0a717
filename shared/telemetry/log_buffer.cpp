#include "shared/telemetry/log_buffer.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace handoff::telemetry {
namespace {

/// Room kept for the line that tells of drops, which isn't worth building before it fits.
constexpr std::size_t kNoteBytes = 128;

bool is_socket(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
}

}  // namespace

LogBuffer::LogBuffer(int descriptor) : descriptor_(descriptor), is_socket_(is_socket(descriptor)) {}

void LogBuffer::append(std::string_view line, std::string (*note_of_drops)(std::uint64_t)) {
  if (size() + kNoteBytes + line.size() > kMaxBytes) {
    ++dropped_;
    return;
  }
  if (dropped_ != 0) {
    text_ += note_of_drops(dropped_);
    dropped_ = 0;
  }
  text_ += line;
  bytes_since_flush_ += line.size();
}

void LogBuffer::flush() {
  bytes_since_flush_ = 0;
  while (size() != 0 && write_piece()) {
  }
  text_.erase(0, begin_);
  begin_ = 0;
}

bool LogBuffer::write_piece() {
  pollfd ready{descriptor_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) return false;
  if ((ready.revents & POLLOUT) == 0 || (ready.revents & (POLLERR | POLLNVAL)) != 0) {
    discard();
    return false;
  }
  const auto piece = next_piece();
  // journald's stderr is a socket, whose readiness promises less room than a pipe's.
  const ssize_t written = is_socket_
                              ? ::send(descriptor_, piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                              : ::write(descriptor_, piece.data(), piece.size());
  if (written < 0) {
    if (errno != EAGAIN && errno != EINTR) discard();
    return false;
  }
  begin_ += static_cast<std::size_t>(written);
  return true;
}

/// There is no reader any more: keeping the lines would help nobody.
void LogBuffer::discard() {
  const auto lost = std::count(text_.begin() + static_cast<std::ptrdiff_t>(begin_), text_.end(), '\n');
  dropped_ += static_cast<std::uint64_t>(lost);
  begin_ = text_.size();
}

/// Whole lines as far as they go: other writers of the same pipe then can't break into one.
std::string_view LogBuffer::next_piece() const {
  const auto piece = std::string_view(text_).substr(begin_, kPieceBytes);
  const auto line_end = piece.rfind('\n');
  return line_end == std::string_view::npos ? piece : piece.substr(0, line_end + 1);
}

}  // namespace handoff::telemetry
