#pragma once

#include <cstddef>
#include <cstdint>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/// Classification of 16 or 64 bytes at a time; internal to the scanner. Bit i of a mask stands for byte i.
namespace handoff::json::block {

inline constexpr std::size_t kSize = 16;
inline constexpr std::size_t kWideSize = 64;

/// What is where in 64 bytes.
struct Marks {
  std::uint64_t quotes = 0;
  std::uint64_t brackets = 0;  ///< of all four kinds
  std::uint64_t backslashes = 0;
};

namespace portable {

inline std::uint32_t quotes(const char* bytes) {
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < kSize; ++i) mask |= static_cast<std::uint32_t>(bytes[i] == '"') << i;
  return mask;
}

inline std::uint32_t quotes_and_backslashes(const char* bytes) {
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < kSize; ++i) {
    mask |= static_cast<std::uint32_t>(bytes[i] == '"' || bytes[i] == '\\') << i;
  }
  return mask;
}

inline Marks marks(const char* bytes) {
  Marks out;
  for (std::size_t i = 0; i < kWideSize; ++i) {
    const char c = bytes[i];
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (c == '"') out.quotes |= bit;
    if (c == '[' || c == ']' || c == '{' || c == '}') out.brackets |= bit;
    if (c == '\\') out.backslashes |= bit;
  }
  return out;
}

}  // namespace portable

#ifdef __SSE2__

namespace sse2 {

inline __m128i load(const char* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

inline std::uint32_t to_mask(__m128i hits) {
  return static_cast<std::uint32_t>(_mm_movemask_epi8(hits));
}

inline std::uint32_t quotes(const char* bytes) {
  return to_mask(_mm_cmpeq_epi8(load(bytes), _mm_set1_epi8('"')));
}

inline std::uint32_t quotes_and_backslashes(const char* bytes) {
  const __m128i text = load(bytes);
  return to_mask(
      _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\\'))));
}

inline __m128i bracket(__m128i text) {
  // '[' and '{', and ']' and '}', differ in bit 5 only: two comparisons find all four.
  const __m128i folded = _mm_or_si128(text, _mm_set1_epi8(0x20));
  return _mm_or_si128(_mm_cmpeq_epi8(folded, _mm_set1_epi8('{')), _mm_cmpeq_epi8(folded, _mm_set1_epi8('}')));
}

inline __m128i quote_or_bracket(const char* bytes) {
  const __m128i text = load(bytes);
  return _mm_or_si128(bracket(text), _mm_cmpeq_epi8(text, _mm_set1_epi8('"')));
}

inline Marks marks(const char* bytes) {
  Marks out;
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kWideSize; i += kSize) {
    const __m128i text = load(bytes + i);
    out.quotes |= std::uint64_t{to_mask(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')))} << i;
    out.brackets |= std::uint64_t{to_mask(bracket(text))} << i;
    out.backslashes |= std::uint64_t{to_mask(_mm_cmpeq_epi8(text, _mm_set1_epi8('\\')))} << i;
  }
  return out;
}

}  // namespace sse2

using sse2::marks;
using sse2::quotes;
using sse2::quotes_and_backslashes;

#else

using portable::marks;
using portable::quotes;
using portable::quotes_and_backslashes;

#endif

/// Whether 64 bytes hold neither a quote nor a bracket, as inside an array of numbers.
inline bool are_plain(const char* bytes) {
#ifdef __SSE2__
  const __m128i front = _mm_or_si128(sse2::quote_or_bracket(bytes), sse2::quote_or_bracket(bytes + kSize));
  const __m128i back =
      _mm_or_si128(sse2::quote_or_bracket(bytes + 2 * kSize), sse2::quote_or_bracket(bytes + 3 * kSize));
  return sse2::to_mask(_mm_or_si128(front, back)) == 0;
#else
  const Marks found = marks(bytes);
  return (found.quotes | found.brackets) == 0;
#endif
}

}  // namespace handoff::json::block
