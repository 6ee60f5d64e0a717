#include "gzip.hpp"

#include <algorithm>
#include <cstdint>

namespace handoff::mock {
namespace {

std::uint32_t crc32(const std::string& data) {
  std::uint32_t crc = 0xffffffffU;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) ? (crc >> 1) ^ 0xedb88320U : crc >> 1;
  }
  return ~crc;
}

void append_little_endian(std::string& out, std::uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xffU);
}

}  // namespace

std::string gzip_stored(const std::string& data) {
  std::string out("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", 10);
  std::size_t at = 0;
  do {
    const std::size_t size = std::min<std::size_t>(65535, data.size() - at);
    out += at + size == data.size() ? '\x01' : '\x00';
    append_little_endian(out, static_cast<std::uint32_t>(size), 2);
    append_little_endian(out, static_cast<std::uint32_t>(~size) & 0xffffU, 2);
    out.append(data, at, size);
    at += size;
  } while (at < data.size());
  append_little_endian(out, crc32(data), 4);
  append_little_endian(out, static_cast<std::uint32_t>(data.size()), 4);
  return out;
}

}  // namespace handoff::mock
