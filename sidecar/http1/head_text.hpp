// Pieces of which the heads of messages are written.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace handoff::sidecar::http1 {

inline void append_number(std::string& out, std::uint64_t value, int base = 10) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value, base).ptr;
  out.append(digits, end);
}

/// A field line. Neither part may hold a line break: they come from a parsed head, or were checked.
inline void append_field(std::string& out, std::string_view name, std::string_view value) {
  const auto at = out.size();
  out.resize(at + name.size() + value.size() + 4);
  char* to = out.data() + at;
  to += name.copy(to, name.size());
  *to++ = ':';
  *to++ = ' ';
  to += value.copy(to, value.size());
  *to++ = '\r';
  *to = '\n';
}

inline void append_content_length(std::string& out, std::uint64_t length) {
  out += "content-length: ";
  append_number(out, length);
  out += "\r\n";
}

}  // namespace handoff::sidecar::http1
