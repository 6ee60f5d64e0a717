#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace handoff::epp {

// Reads MessagePack from a buffer, value by value, without building a tree. Never reads past the end, never
// recurses, never allocates, and never believes a length: a count that the rest of the buffer can't hold is
// an error. After the first error every read fails. (Debian's msgpack-cxx is no choice: it needs another
// Boost than ours.)
class MsgpackCursor {
 public:
  enum class Kind : std::uint8_t { nil, boolean, integer, real, text, bytes, array, map, extension, invalid };

  explicit MsgpackCursor(std::span<const std::byte> data)
      : at_(data.data()), end_(data.data() + data.size()) {}

  bool ok() const { return !failed_; }
  bool at_end() const { return at_ == end_; }
  std::size_t remaining() const { return static_cast<std::size_t>(end_ - at_); }

  // What comes next; invalid at the end.
  Kind peek() const;

  bool read_nil();
  // Integers of either sign; negative ones as their two's complement, so that signed and unsigned spellings
  // of the same 64 bits are the same.
  bool read_integer(std::uint64_t& bits, bool& negative);
  bool read_real(double& value);  // integers too
  bool read_text(std::string_view& text);
  bool read_bytes(std::span<const std::byte>& bytes);
  bool read_array(std::size_t& count);
  bool read_map(std::size_t& count);
  bool skip();  // one value with all that is in it

  // The next values as long as they are numbers below 2^32 in their usual spelling; how many. May stop a few
  // bytes before the end of the buffer, or anywhere else: what comes next is read in the usual way. For the
  // long lists of token ids, where a call per value would be most of the work.
  std::size_t take_small_numbers(std::span<std::uint32_t> out) {
    constexpr std::ptrdiff_t kLongest = 5;
    if (failed_) return 0;
    const std::byte* at = at_;
    const auto byte = [&at](std::size_t i) { return std::to_integer<std::uint32_t>(at[i]); };
    std::size_t taken = 0;
    for (; taken < out.size() && end_ - at >= kLongest; ++taken) {
      // Two of the most common kind at once: most token ids take 16 bits.
      constexpr std::uint64_t kTwoHeads = 0xFF0000FF00000000;
      constexpr std::uint64_t kTwoUint16 = 0xCD0000CD00000000;
      for (; out.size() - taken >= 2 && end_ - at >= 8; taken += 2, at += 6) {
        const std::uint64_t word = big_endian_word(at);
        if ((word & kTwoHeads) != kTwoUint16) break;
        out[taken] = static_cast<std::uint32_t>(word >> 40 & 0xFFFF);
        out[taken + 1] = static_cast<std::uint32_t>(word >> 16 & 0xFFFF);
      }
      if (taken == out.size() || end_ - at < kLongest) break;
      const std::uint32_t head = byte(0);
      if (head == 0xCD) {
        out[taken] = byte(1) << 8 | byte(2);
        at += 3;
      } else if (head == 0xCE) {
        out[taken] = byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
        at += 5;
      } else if (head < 0x80) {
        out[taken] = head;
        at += 1;
      } else if (head == 0xCC) {
        out[taken] = byte(1);
        at += 2;
      } else {
        break;
      }
    }
    at_ = at;
    return taken;
  }

  // The same for unsigned numbers of 64 bits: block hashes.
  std::size_t take_large_numbers(std::span<std::uint64_t> out) {
    constexpr std::ptrdiff_t kBytes = 9;
    if (failed_) return 0;
    std::size_t taken = 0;
    for (; taken < out.size() && end_ - at_ >= kBytes; ++taken) {
      if (std::to_integer<std::uint32_t>(at_[0]) != 0xCF) break;
      out[taken] = big_endian_word(at_ + 1);
      at_ += kBytes;
    }
    return taken;
  }

  bool fail() {
    failed_ = true;
    return false;
  }

 private:
  static std::uint64_t big_endian_word(const std::byte* at) {
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    return __builtin_bswap64(word);
  }
  bool take(std::size_t count, const std::byte*& start);
  bool read_big_endian(std::size_t width, std::uint64_t& value);
  bool read_blob(std::size_t length_width, std::span<const std::byte>& blob);
  bool read_count(std::size_t width, std::size_t bytes_per_entry, std::size_t& count);
  bool skip_head(std::size_t& children);

  const std::byte* at_;
  const std::byte* end_;
  bool failed_ = false;
};

}  // namespace handoff::epp
