#include "shared/json/value_skip.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "shared/json/byte_block.hpp"

namespace handoff::json {
namespace {

constexpr std::size_t kKeptWords = 1024;
/// A string that has gone this many blocks without a quote is long: memchr then wins over our own loop.
constexpr int kShortStringBlocks = 4;

using Mask = std::uint32_t (*)(const char*);

/// The mask of the block at `at`, also when fewer than 16 bytes are left.
template <Mask mask>
std::uint32_t mask_at(std::string_view text, std::size_t at) {
  const std::size_t left = text.size() - at;
  if (left >= block::kSize) return mask(text.data() + at);
  std::array<char, block::kSize> padded{};
  std::memcpy(padded.data(), text.data() + at, left);
  return mask(padded.data());
}

std::size_t lowest_bit(std::uint64_t mask) {
  return static_cast<std::size_t>(std::countr_zero(mask));
}

block::Marks marks_at(std::string_view text, std::size_t at) {
  const std::size_t left = text.size() - at;
  if (left >= block::kWideSize) return block::marks(text.data() + at);
  std::array<char, block::kWideSize> padded{};
  std::memcpy(padded.data(), text.data() + at, left);
  return block::marks(padded.data());
}

/// Bit i: whether the number of set bits up to and including bit i is odd. Of quotes: opening ones, and what
/// lies between them and the closing ones.
std::uint64_t parity_so_far(std::uint64_t bits) {
#pragma GCC unroll 6
  for (unsigned shift = 1; shift < 64; shift *= 2) bits ^= bits << shift;
  return bits;
}

/// Counts the backslashes before `at`. Runs before different quotes don't overlap, so a whole string is
/// linear.
bool is_escaped(std::string_view text, std::size_t begin, std::size_t at) {
  std::size_t run = at;
  while (run > begin && text[run - 1] == '\\') --run;
  return (at - run) % 2 != 0;
}

constexpr auto kEndsScalar = [] {
  std::array<bool, 256> ends{};
  for (const char c : {' ', '\t', '\n', '\r', ',', ':', '"', '[', ']', '{', '}'})
    ends[static_cast<unsigned char>(c)] = true;
  return ends;
}();

}  // namespace

void BracketStack::shrink() {
  if (full_.capacity() <= kKeptWords) return;
  clear();
  full_.shrink_to_fit();
}

std::size_t find_closing_quote(std::string_view text, std::size_t begin) {
  int blocks_without_quote = 0;
  std::size_t at = begin;
  while (at < text.size()) {
    std::uint32_t mask = mask_at<block::quotes>(text, at);
    blocks_without_quote = mask == 0 ? blocks_without_quote + 1 : 0;
    for (; mask != 0; mask &= mask - 1) {
      const std::size_t quote = at + lowest_bit(mask);
      if (!is_escaped(text, begin, quote)) return quote;
    }
    at += block::kSize;
    if (blocks_without_quote == kShortStringBlocks && at < text.size()) {
      const void* found = std::memchr(text.data() + at, '"', text.size() - at);
      if (found == nullptr) return kNoEnd;
      at = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
    }
  }
  return kNoEnd;
}

namespace {

/// Takes a bracket. True: it was the last one that was open, or is of the wrong kind.
bool ends_nested(char bracket, BracketStack& stack, bool& matches) {
  if (bracket == '[' || bracket == '{') {
    stack.push(bracket == '{');
    return false;
  }
  matches = stack.pop(bracket == '}');
  return !matches || stack.empty();
}

}  // namespace

std::size_t skip_nested(std::string_view text, std::size_t open, BracketStack& stack) {
  stack.clear();
  std::size_t at = open;  // never inside a string
  bool matches = true;
  while (at < text.size()) {
    const block::Marks found = marks_at(text, at);
    std::size_t next = at + block::kWideSize;
    if ((found.quotes | found.brackets) == 0) {
      while (next + block::kWideSize <= text.size() && block::are_plain(text.data() + next))
        next += block::kWideSize;
    } else if (found.backslashes == 0) {  // every quote opens or closes a string
      const std::uint64_t inside = parity_so_far(found.quotes);
      for (std::uint64_t left = found.brackets & ~inside; left != 0; left &= left - 1) {
        const std::size_t here = at + lowest_bit(left);
        if (ends_nested(text[here], stack, matches)) return matches ? here + 1 : kNoEnd;
      }
      if (inside >> 63U != 0) {
        const std::size_t behind_the_last =
            at + 64 - static_cast<std::size_t>(std::countl_zero(found.quotes));
        const std::size_t end = find_string_end(text, behind_the_last);
        if (end == kNoEnd) return kNoEnd;
        next = end + 1;
      }
    } else {
      for (std::uint64_t left = found.quotes | found.brackets; left != 0;) {
        const std::size_t here = at + lowest_bit(left);
        left &= left - 1;
        if (text[here] != '"') {
          if (ends_nested(text[here], stack, matches)) return matches ? here + 1 : kNoEnd;
          continue;
        }
        const std::size_t end = find_string_end(text, here + 1);
        if (end == kNoEnd) return kNoEnd;
        const std::size_t ahead = end + 1 - at;
        if (ahead >= block::kWideSize) {
          next = end + 1;
          break;
        }
        left &= ~std::uint64_t{0} << ahead;
      }
    }
    at = next;
  }
  return kNoEnd;
}

std::size_t skip_scalar(std::string_view text, std::size_t begin) {
  std::size_t at = begin;
  while (at < text.size() && !kEndsScalar[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

}  // namespace handoff::json
