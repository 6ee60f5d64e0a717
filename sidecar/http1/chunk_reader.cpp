#include "sidecar/http1/chunk_reader.hpp"

#include <algorithm>

#include "sidecar/ascii.hpp"

namespace handoff::sidecar::http1 {
namespace {

constexpr std::ptrdiff_t kMalformed = -1;
constexpr std::ptrdiff_t kNeedMore = 0;
constexpr std::size_t kMostDigits = 16;
// A size with its extensions, or a field of the trailer section, however it was cut on its way.
constexpr std::size_t kMostLineBytes = 16 * 1024;
// All of a trailer section, which is dropped: more is an attempt to keep us busy.
constexpr std::size_t kMostTrailerBytes = 64 * 1024;
// Extensions beyond as many bytes as there is content: for the same reason.
constexpr std::uint64_t kSpareExtensionBytes = 64 * 1024;

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Visible ASCII, white space, and bytes beyond ASCII; no control byte, and so no end of line.
bool is_line_text(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c == '\t' || (c >= ' ' && c != 0x7F); });
}

// The line's length without its CRLF; kNeedMore where its end is not there yet. An empty line has length 0,
// so the caller asks for it first.
std::ptrdiff_t length_of_line(std::string_view rest) {
  const auto line_feed = rest.find('\n');
  const auto text = rest.substr(0, std::min(line_feed, rest.size()));
  if (text.size() > kMostLineBytes) return kMalformed;
  if (line_feed == std::string_view::npos) {
    const auto before_end = text.ends_with('\r') ? text.substr(0, text.size() - 1) : text;
    return is_line_text(before_end) ? kNeedMore : kMalformed;
  }
  if (!text.ends_with('\r') || !is_line_text(text.substr(0, text.size() - 1))) return kMalformed;
  return static_cast<std::ptrdiff_t>(text.size()) - 1;
}

}  // namespace

std::ptrdiff_t ChunkReader::read_size(std::string_view rest, bool& has_extension) {
  std::uint64_t size = 0;
  std::size_t digits = 0;
  for (; digits < rest.size(); ++digits) {
    const int digit = digit_of(rest[digits]);
    if (digit < 0) break;
    if (digits == kMostDigits) return kMalformed;
    size = size * 16 + static_cast<std::uint64_t>(digit);
  }
  if (digits == rest.size()) return kNeedMore;
  if (digits == 0) return kMalformed;
  std::size_t line = digits;
  if (rest[digits] != '\r' || digits + 1 == rest.size() || rest[digits + 1] != '\n') {
    const auto after = rest.substr(digits);
    const auto length = length_of_line(after);
    if (length == kMalformed) return kMalformed;
    const auto first = after.find_first_not_of(" \t");
    if (first != std::string_view::npos && after[first] != ';' && after[first] != '\r') return kMalformed;
    if (length == kNeedMore) return kNeedMore;
    line += static_cast<std::size_t>(length);
    has_extension = true;
    extension_bytes_ += static_cast<std::uint64_t>(length);
    if (extension_bytes_ > content_bytes_ + kSpareExtensionBytes) return kMalformed;
  }
  left_ = size;
  state_ = size == 0 ? State::trailers : State::data;
  return static_cast<std::ptrdiff_t>(line + 2);
}

std::ptrdiff_t ChunkReader::read_trailer(std::string_view rest) {
  if (rest.empty() || rest == "\r") return kNeedMore;
  if (rest.starts_with("\r\n")) {
    state_ = State::complete;
    return 2;
  }
  const auto length = length_of_line(rest);
  if (length <= 0) return length;
  const auto line = rest.substr(0, static_cast<std::size_t>(length));
  const auto colon = line.find(':');
  if (colon == std::string_view::npos || !is_http_token(line.substr(0, colon))) return kMalformed;
  trailer_bytes_ += line.size() + 2;
  return trailer_bytes_ > kMostTrailerBytes ? kMalformed : length + 2;
}

ChunkReader::Result ChunkReader::read(std::string_view data, std::vector<std::string_view>& pieces) {
  const bool from_boundary = state_ == State::size;
  bool has_extension = false;
  std::size_t at = 0;
  while (state_ != State::complete) {
    const auto rest = data.substr(at);
    std::ptrdiff_t taken = kNeedMore;
    switch (state_) {
      case State::size:
        taken = read_size(rest, has_extension);
        break;
      case State::data: {
        const auto piece =
            rest.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(left_, rest.size())));
        if (!piece.empty()) pieces.push_back(piece);
        left_ -= piece.size();
        content_bytes_ += piece.size();
        if (left_ == 0) state_ = State::end_of_data;
        taken = static_cast<std::ptrdiff_t>(piece.size());
        break;
      }
      case State::end_of_data:
        if (rest.starts_with("\r\n")) {
          taken = 2;
          state_ = State::size;
        } else if (!rest.empty() && rest != "\r") {
          taken = kMalformed;
        }
        break;
      case State::trailers:
        taken = read_trailer(rest);
        break;
      case State::complete:
        break;
    }
    if (taken == kMalformed) return {Status::malformed, at};
    if (taken == kNeedMore) break;
    at += static_cast<std::size_t>(taken);
  }
  if (state_ == State::complete) return {Status::complete, at};
  return {Status::need_more, at, from_boundary && state_ == State::size && !has_extension && at != 0};
}

}  // namespace handoff::sidecar::http1
