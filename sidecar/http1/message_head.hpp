// The head of an HTTP/1.1 message as views into a copy of its bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sidecar/header_rules.hpp"

namespace handoff::sidecar::http1 {

struct HeaderField {
  std::string_view name;
  std::string_view value;
  HeaderClass kind;
};

/// What both kinds of head have. All views point into `text`, so a head stays where it is; clear() makes it
/// ready for the next message and keeps its memory.
struct MessageHead {
  MessageHead() = default;
  MessageHead(const MessageHead&) = delete;
  MessageHead& operator=(const MessageHead&) = delete;

  std::vector<char> text;
  std::vector<HeaderField> fields;
  int version = 11;         // 10 or 11
  bool keep_alive = false;  // the sender's wish, by version and Connection
  bool chunked = false;
  ConnectionOptions connection;
  std::optional<std::uint64_t> content_length;

  const HeaderField* find(HeaderClass kind) const {
    for (const auto& field : fields) {
      if (field.kind == kind) return &field;
    }
    return nullptr;
  }
  /// Value of the first field of that name, compared without case.
  std::optional<std::string_view> find(std::string_view name) const;

 protected:
  void clear_common();
};

struct RequestHead : MessageHead {
  std::string_view method;
  std::string_view target;
  bool expects_continue = false;
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
  void clear();
};

struct ResponseHead : MessageHead {
  unsigned status = 0;
  std::string_view reason;
  bool body_to_eof = false;  // neither length nor chunks: the body ends with the connection
  void clear();
};

}  // namespace handoff::sidecar::http1
