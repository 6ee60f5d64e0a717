#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace handoff::sidecar::http1 {

/// The chunked transfer coding of one message (RFC 9112, 7.1), read where it lies.
///
/// Stricter than most readers, since a proxy must see what both of its neighbours see: lines end with CRLF
/// and nothing else, a size is one to sixteen hexadecimal digits, what may follow it is an extension, and a
/// trailer section consists of field lines. Extensions and trailers are dropped, as nothing was announced to
/// the peer.
///
/// A reader of our own because it is passed by every event of every stream: Beast's parser leaves the end of
/// a chunk unread until the next one comes, so that each event would be copied behind two old bytes.
class ChunkReader {
 public:
  enum class Status { need_more, complete, malformed };
  struct Result {
    Status status;
    std::size_t consumed = 0;  ///< what is left over must be given again, with more behind it
    /// All that was consumed is whole chunks without extensions, before the last one: the bytes may be passed
    /// on as they are.
    bool verbatim = false;
  };

  /// Reads what it can and appends the pieces of content, as views into `data`. A chunk that lies in `data`
  /// as a whole is one piece. A line is consumed only as a whole, and may have 16 KiB; all extensions
  /// together may have 64 KiB more than the content so far.
  Result read(std::string_view data, std::vector<std::string_view>& pieces);
  bool is_complete() const { return state_ == State::complete; }

 private:
  enum class State : std::uint8_t { size, data, end_of_data, trailers, complete };
  /// How much of `rest` was read; 0: more is needed; negative: malformed.
  std::ptrdiff_t read_size(std::string_view rest, bool& has_extension);
  std::ptrdiff_t read_trailer(std::string_view rest);

  std::uint64_t left_ = 0;  // of the chunk's data
  std::uint64_t content_bytes_ = 0;
  std::uint64_t extension_bytes_ = 0;
  std::size_t trailer_bytes_ = 0;
  State state_ = State::size;
};

}  // namespace handoff::sidecar::http1
