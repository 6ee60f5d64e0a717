#include "epp/kv_index/msgpack_cursor.hpp"

#include <bit>

namespace handoff::epp {

namespace {

// First bytes of the MessagePack specification.
enum Head : std::uint8_t {
  kFixMap = 0x80,
  kFixArray = 0x90,
  kFixText = 0xA0,
  kNil = 0xC0,
  kUnused = 0xC1,
  kFalse = 0xC2,
  kTrue = 0xC3,
  kBytes8 = 0xC4,
  kBytes32 = 0xC6,
  kExt8 = 0xC7,
  kExt32 = 0xC9,
  kFloat32 = 0xCA,
  kFloat64 = 0xCB,
  kUint8 = 0xCC,
  kUint64 = 0xCF,
  kInt8 = 0xD0,
  kInt64 = 0xD3,
  kFixExt1 = 0xD4,
  kFixExt16 = 0xD8,
  kText8 = 0xD9,
  kText32 = 0xDB,
  kArray16 = 0xDC,
  kArray32 = 0xDD,
  kMap16 = 0xDE,
  kMap32 = 0xDF,
  kNegativeFixInt = 0xE0,
};

bool is_fix_map(std::uint8_t head) {
  return head >= kFixMap && head < kFixArray;
}
bool is_fix_array(std::uint8_t head) {
  return head >= kFixArray && head < kFixText;
}
bool is_fix_text(std::uint8_t head) {
  return head >= kFixText && head < kNil;
}

}  // namespace

MsgpackCursor::Kind MsgpackCursor::peek() const {
  if (failed_ || at_ == end_) return Kind::invalid;
  const auto head = std::to_integer<std::uint8_t>(*at_);
  if (head < kFixMap || head >= kNegativeFixInt || (head >= kUint8 && head <= kInt64)) return Kind::integer;
  if (is_fix_map(head) || head == kMap16 || head == kMap32) return Kind::map;
  if (is_fix_array(head) || head == kArray16 || head == kArray32) return Kind::array;
  if (is_fix_text(head) || (head >= kText8 && head <= kText32)) return Kind::text;
  if (head >= kBytes8 && head <= kBytes32) return Kind::bytes;
  if (head == kFloat32 || head == kFloat64) return Kind::real;
  if (head == kNil) return Kind::nil;
  if (head == kFalse || head == kTrue) return Kind::boolean;
  if (head == kUnused) return Kind::invalid;
  return Kind::extension;
}

bool MsgpackCursor::take(std::size_t count, const std::byte*& start) {
  if (failed_ || count > remaining()) return fail();
  start = at_;
  at_ += count;
  return true;
}

bool MsgpackCursor::read_big_endian(std::size_t width, std::uint64_t& value) {
  const std::byte* bytes = nullptr;
  if (!take(width, bytes)) return false;
  value = 0;
  for (std::size_t i = 0; i < width; ++i) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return true;
}

bool MsgpackCursor::read_nil() {
  if (peek() != Kind::nil) return fail();
  ++at_;
  return true;
}

bool MsgpackCursor::read_integer(std::uint64_t& bits, bool& negative) {
  if (peek() != Kind::integer) return fail();
  const auto head = std::to_integer<std::uint8_t>(*at_++);
  negative = false;
  if (head < kFixMap) {
    bits = head;
    return true;
  }
  if (head >= kNegativeFixInt) {
    bits = ~std::uint64_t{0} << 8 | head;
    negative = true;
    return true;
  }
  const bool is_signed = head >= kInt8;
  const std::size_t width = std::size_t{1} << (head - (is_signed ? kInt8 : kUint8));
  if (!read_big_endian(width, bits)) return false;
  negative = is_signed && (bits >> (width * 8 - 1) & 1) != 0;
  if (negative && width < 8) bits |= ~std::uint64_t{0} << (width * 8);
  return true;
}

bool MsgpackCursor::read_real(double& value) {
  if (peek() == Kind::integer) {
    std::uint64_t bits = 0;
    bool negative = false;
    if (!read_integer(bits, negative)) return false;
    value = negative ? static_cast<double>(static_cast<std::int64_t>(bits)) : static_cast<double>(bits);
    return true;
  }
  if (peek() != Kind::real) return fail();
  const bool is_double = std::to_integer<std::uint8_t>(*at_++) == kFloat64;
  std::uint64_t bits = 0;
  if (!read_big_endian(is_double ? 8 : 4, bits)) return false;
  value = is_double ? std::bit_cast<double>(bits) : std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  return true;
}

bool MsgpackCursor::read_blob(std::size_t length_width, std::span<const std::byte>& blob) {
  std::uint64_t length = 0;
  const std::byte* start = nullptr;
  if (!read_big_endian(length_width, length) || !take(length, start)) return false;
  blob = {start, static_cast<std::size_t>(length)};
  return true;
}

bool MsgpackCursor::read_text(std::string_view& text) {
  if (peek() != Kind::text) return fail();
  const auto head = std::to_integer<std::uint8_t>(*at_++);
  std::span<const std::byte> blob;
  if (is_fix_text(head)) {
    const std::byte* start = nullptr;
    if (!take(head & 0x1FU, start)) return false;
    blob = {start, head & 0x1FU};
  } else if (!read_blob(std::size_t{1} << (head - kText8), blob)) {
    return false;
  }
  text = {reinterpret_cast<const char*>(blob.data()), blob.size()};
  return true;
}

bool MsgpackCursor::read_bytes(std::span<const std::byte>& bytes) {
  if (peek() != Kind::bytes) return fail();
  const auto head = std::to_integer<std::uint8_t>(*at_++);
  return read_blob(std::size_t{1} << (head - kBytes8), bytes);
}

bool MsgpackCursor::read_count(std::size_t width, std::size_t bytes_per_entry, std::size_t& count) {
  std::uint64_t value = 0;
  if (!read_big_endian(width, value)) return false;
  if (value > remaining() / bytes_per_entry) return fail();
  count = value;
  return true;
}

bool MsgpackCursor::read_array(std::size_t& count) {
  if (peek() != Kind::array) return fail();
  const auto head = std::to_integer<std::uint8_t>(*at_++);
  if (!is_fix_array(head)) return read_count(head == kArray16 ? 2 : 4, 1, count);
  count = head & 0x0FU;
  return count <= remaining() || fail();
}

bool MsgpackCursor::read_map(std::size_t& count) {
  if (peek() != Kind::map) return fail();
  const auto head = std::to_integer<std::uint8_t>(*at_++);
  if (!is_fix_map(head)) return read_count(head == kMap16 ? 2 : 4, 2, count);
  count = head & 0x0FU;
  return 2 * count <= remaining() || fail();
}

bool MsgpackCursor::skip_head(std::size_t& children) {
  children = 0;
  const std::byte* ignored = nullptr;
  std::span<const std::byte> blob;
  std::string_view text;
  std::uint64_t bits = 0;
  bool negative = false;
  switch (peek()) {
    case Kind::nil:
    case Kind::boolean:
      return take(1, ignored);
    case Kind::integer:
      return read_integer(bits, negative);
    case Kind::real:
      return take(std::to_integer<std::uint8_t>(*at_) == kFloat64 ? 9 : 5, ignored);
    case Kind::text:
      return read_text(text);
    case Kind::bytes:
      return read_bytes(blob);
    case Kind::array:
      return read_array(children);
    case Kind::map:
      if (!read_map(children)) return false;
      children *= 2;
      return true;
    case Kind::extension: {
      const auto head = std::to_integer<std::uint8_t>(*at_++);
      if (head >= kFixExt1 && head <= kFixExt16)
        return take((std::size_t{1} << (head - kFixExt1)) + 1, ignored);
      std::uint64_t length = 0;
      return read_big_endian(std::size_t{1} << (head - kExt8), length) && take(length + 1, ignored);
    }
    case Kind::invalid:
      break;
  }
  return fail();
}

bool MsgpackCursor::skip() {
  // Counting what is still to come takes the place of recursion. It can't overflow: no count exceeds what is
  // left.
  for (std::size_t pending = 1; pending > 0; --pending) {
    std::size_t children = 0;
    if (!skip_head(children)) return false;
    pending += children;
  }
  return true;
}

}  // namespace handoff::epp
