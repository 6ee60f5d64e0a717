#include "shared/json/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace handoff::json {
namespace {

constexpr std::uint64_t kHighBits = 0x8080808080808080U;

unsigned byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

bool is_continuation(std::string_view text, std::size_t at) {
  return at < text.size() && (byte_at(text, at) & 0xC0U) == 0x80U;
}

/// The second byte carries the rules against overlong forms, surrogates and values above U+10FFFF.
bool second_byte_fits(unsigned first, unsigned second) {
  switch (first) {
    case 0xE0:
      return second >= 0xA0;
    case 0xED:
      return second <= 0x9F;
    case 0xF0:
      return second >= 0x90;
    case 0xF4:
      return second <= 0x8F;
    default:
      return true;
  }
}

}  // namespace

std::size_t utf8_sequence_length(std::string_view text, std::size_t at) {
  const unsigned first = byte_at(text, at);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text, at + i)) return 0;
  }
  return second_byte_fits(first, byte_at(text, at + 1)) ? length : 0;
}

bool is_valid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    while (text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & kHighBits) != 0) break;
      at += sizeof(word);
    }
    if (at == text.size()) break;
    const std::size_t length = utf8_sequence_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

void append_code_point(std::string& out, char32_t code_point) {
  const auto tail = [code_point](unsigned shift) {
    return static_cast<char>(0x80U | ((code_point >> shift) & 0x3FU));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0U | (code_point >> 6U));
    out += tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0U | (code_point >> 12U));
    out += tail(6);
    out += tail(0);
  } else {
    out += static_cast<char>(0xF0U | (code_point >> 18U));
    out += tail(12);
    out += tail(6);
    out += tail(0);
  }
}

}  // namespace handoff::json
