#include "shared/json/value_skip.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "shared/json/byte_block.hpp"

namespace handoff::json {
namespace {

constexpr std::size_t kWordBits = 64;
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

std::size_t lowest_bit(std::uint32_t mask) {
  return static_cast<std::size_t>(std::countr_zero(mask));
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

void BracketStack::push(bool is_object) {
  const std::size_t word = depth_ / kWordBits;
  if (word == words_.size()) words_.push_back(0);
  const std::uint64_t bit = std::uint64_t{1} << (depth_ % kWordBits);
  if (is_object) {
    words_[word] |= bit;
  } else {
    words_[word] &= ~bit;
  }
  ++depth_;
}

bool BracketStack::pop(bool is_object) {
  if (depth_ == 0) return false;
  --depth_;
  return ((words_[depth_ / kWordBits] >> (depth_ % kWordBits)) & 1U) == static_cast<std::uint64_t>(is_object);
}

void BracketStack::shrink() {
  if (words_.size() <= kKeptWords) return;
  words_.clear();
  words_.shrink_to_fit();
  depth_ = 0;
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

std::size_t skip_nested(std::string_view text, std::size_t open, BracketStack& stack) {
  stack.clear();
  std::size_t at = open;
  while (at < text.size()) {
    std::uint32_t mask = mask_at<block::quotes_and_brackets>(text, at);
    std::size_t next = at + block::kSize;
    if (mask == 0) {
      constexpr std::size_t kFour = 4 * block::kSize;
      while (next + kFour <= text.size() && block::four_are_plain(text.data() + next)) next += kFour;
    }
    while (mask != 0) {
      const std::size_t here = at + lowest_bit(mask);
      const char c = text[here];
      mask &= mask - 1;
      if (c == '"') {
        std::size_t quote = find_short_string_end(text, here + 1);
        if (quote == kNoEnd) quote = find_closing_quote(text, here + 1);
        if (quote == kNoEnd) return kNoEnd;
        const std::size_t ahead = quote + 1 - at;
        if (ahead >= block::kSize) {
          next = quote + 1;
          break;
        }
        mask &= ~std::uint32_t{0} << ahead;
      } else if (c == '[' || c == '{') {
        stack.push(c == '{');
      } else {
        if (!stack.pop(c == '}')) return kNoEnd;
        if (stack.empty()) return here + 1;
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
