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

bool is_decimal_digit(char c) {
  return c >= '0' && c <= '9';
}

// A byte is in its place if it is a digit or a comma, is no comma behind a comma, and is no digit behind a
// zero that begins a number. The rules look back only, so blocks may overlap. What begins the list is looked
// at before.

/// Nonzero where a byte of the block at `at` is not in its place.
inline Bytes misplaced(const char* at) {
  const Bytes here = load(at);
  const Bytes before = load(at - 1);
  const Bytes digit = Bytes(here - '0' <= 9);
  const Bytes comma = Bytes(here == ',');
  const Bytes behind_leading_zero = Bytes(before == '0') & Bytes(load(at - 2) == ',');
  return ~(digit | comma) | (comma & Bytes(before == ',')) | (digit & behind_leading_zero);
}

/// The same for one byte.
bool is_misplaced(const char* at) {
  if (is_decimal_digit(*at)) return at[-1] == '0' && at[-2] == ',';
  return *at != ',' || at[-1] == ',';
}

bool is_any(Bytes mask) {
  std::uint64_t halves[2];
  std::memcpy(halves, &mask, kBlock);
  return (halves[0] | halves[1]) != 0;
}

}  // namespace

bool is_compact_integer_list(std::string_view list) {
  if (list.size() < 3 || list.front() != '[' || list.back() != ']') return false;
  const auto inside = list.substr(1, list.size() - 2);
  if (!is_decimal_digit(inside.front()) || !is_decimal_digit(inside.back())) return false;
  if (inside.size() > 1 && inside[0] == '0' && is_decimal_digit(inside[1])) return false;
  const char* at = inside.data() + 1;
  const char* end = inside.data() + inside.size();
  const auto left = [&] { return static_cast<std::size_t>(end - at); };
  if (left() < kBlock) {
    for (; at != end; ++at) {
      if (is_misplaced(at)) return false;
    }
    return true;
  }
  Bytes bad{};
  for (; left() >= kBlock; at += kBlock) bad |= misplaced(at);
  bad |= misplaced(end - kBlock);
  return !is_any(bad);
}

}  // namespace handoff::json_text
