#include "backends/json_text/integer_list.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace handoff::json_text {
namespace {

/// Sixteen bytes in one register, in what GCC and Clang offer on every machine.
using Bytes = std::uint8_t __attribute__((vector_size(16)));
constexpr std::size_t kBlock = sizeof(Bytes);

Bytes load(const char* from) {
  Bytes out;
  std::memcpy(&out, from, kBlock);
  return out;
}

Bytes is_digit(Bytes c) {
  return Bytes(c - '0' <= 9);
}

/// Nonzero where a byte of the block at `at` can't stand within such a list. The rules look one byte to each
/// side, so that blocks may be looked at in any order, and overlap.
Bytes misplaced(const char* at) {
  const Bytes before = load(at - 1);
  const Bytes here = load(at);
  const Bytes after = load(at + 1);
  const Bytes comma = Bytes(here == ',');
  const Bytes begins = Bytes(before == ',') | Bytes(before == '[');
  const Bytes no_number = comma & (begins | Bytes(after == ']'));
  const Bytes leading_zero = Bytes(here == '0') & begins & is_digit(after);
  return ~(is_digit(here) | comma) | no_number | leading_zero;
}

bool is_any(Bytes mask) {
  std::uint64_t halves[2];
  std::memcpy(halves, &mask, kBlock);
  return (halves[0] | halves[1]) != 0;
}

/// The same rules, byte by byte.
bool all_in_place(const char* begin, const char* end) {
  const auto is_digit_at = [](const char* at) { return *at >= '0' && *at <= '9'; };
  for (const char* at = begin; at != end; ++at) {
    const bool begins = at[-1] == ',' || at[-1] == '[';
    const bool bad =
        is_digit_at(at) ? *at == '0' && begins && is_digit_at(at + 1) : *at != ',' || begins || at[1] == ']';
    if (bad) return false;
  }
  return true;
}

}  // namespace

bool is_compact_integer_list(std::string_view list) {
  if (list.size() < 3 || list.front() != '[' || list.back() != ']') return false;
  const char* begin = list.data() + 1;
  const char* end = list.data() + list.size() - 1;
  if (static_cast<std::size_t>(end - begin) < kBlock) return all_in_place(begin, end);
  Bytes bad{};
  for (const char* at = begin; static_cast<std::size_t>(end - at) >= kBlock; at += kBlock) {
    bad |= misplaced(at);
  }
  bad |= misplaced(end - kBlock);
  return !is_any(bad);
}

}  // namespace handoff::json_text
