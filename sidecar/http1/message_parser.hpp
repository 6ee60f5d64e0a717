// HTTP/1.1 messages, parsed where they lie. Beast's parser does the grammar of heads; the checks that a proxy
// must add to it (framing that two implementations might read differently) are here, chunks in ChunkReader.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "sidecar/http1/message_head.hpp"

namespace handoff::sidecar::http1 {

struct HeadLimits {
  std::size_t bytes = 64 * 1024;
  std::size_t fields = 256;
};

enum class HeadStatus {
  complete,
  need_more,
  too_large,            // more bytes than the limit: 431 to a client
  too_many_fields,      // more header lines than the limit: 431 too
  malformed,            // not HTTP/1, or framing that could be read in two ways: 400
  unsupported_version,  // 505
};

struct HeadResult {
  HeadStatus status;
  std::size_t consumed = 0;  // bytes of the input that the head (and empty lines before it) took
};

enum class BodyStatus { need_more, complete, malformed };

struct BodyResult {
  BodyStatus status;
  std::size_t consumed = 0;  // what is left over must be given again, with more behind it
  bool verbatim = false;     // the consumed bytes are whole plain chunks, and can be passed on as they are
};

/// Longest run of unconsumed bytes that a body parser may ask to see again: a chunk header or a trailer
/// section.
inline constexpr std::size_t kMaxCarry = 16 * 1024;

/// One request at a time; reset() makes it ready for the next. Owned by the connection that reads it.
class RequestParser {
 public:
  RequestParser();
  ~RequestParser();
  void reset();
  /// Looks for a whole head at the start of `data`. `head` is filled when the status is `complete`.
  HeadResult parse_head(std::string_view data, const HeadLimits& limits, RequestHead& head);
  /// Takes body bytes; appends the pieces of content, as views into `data`, in order. A chunk that lies in
  /// `data` as a whole is one piece.
  BodyResult parse_body(std::string_view data, std::vector<std::string_view>& pieces);
  bool is_complete() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One response. `to_head_request`: the answer to HEAD has no body whatever its head says.
class ResponseParser {
 public:
  explicit ResponseParser(bool to_head_request);
  ~ResponseParser();
  /// Ready for the next response, to the same kind of request.
  void reset();
  HeadResult parse_head(std::string_view data, const HeadLimits& limits, ResponseHead& head);
  BodyResult parse_body(std::string_view data, std::vector<std::string_view>& pieces);
  /// The connection ended. `complete` if the body may end that way.
  BodyStatus parse_end();
  bool is_complete() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool to_head_request_;
};

}  // namespace handoff::sidecar::http1
