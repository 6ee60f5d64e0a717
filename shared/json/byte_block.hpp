#pragma once

#include <cstddef>
#include <cstdint>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/// Classification of 16 bytes at a time; internal to the scanner. Bit i of a mask stands for byte i.
namespace handoff::json::block {

inline constexpr std::size_t kSize = 16;

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

inline std::uint32_t quotes_and_brackets(const char* bytes) {
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < kSize; ++i) {
    const char c = bytes[i];
    const bool hit = c == '"' || c == '[' || c == ']' || c == '{' || c == '}';
    mask |= static_cast<std::uint32_t>(hit) << i;
  }
  return mask;
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

inline __m128i quote_or_bracket(const char* bytes) {
  const __m128i text = load(bytes);
  // '[' and '{', and ']' and '}', differ in bit 5 only: two comparisons find all four.
  const __m128i folded = _mm_or_si128(text, _mm_set1_epi8(0x20));
  const __m128i brackets =
      _mm_or_si128(_mm_cmpeq_epi8(folded, _mm_set1_epi8('{')), _mm_cmpeq_epi8(folded, _mm_set1_epi8('}')));
  return _mm_or_si128(brackets, _mm_cmpeq_epi8(text, _mm_set1_epi8('"')));
}

inline std::uint32_t quotes_and_brackets(const char* bytes) {
  return to_mask(quote_or_bracket(bytes));
}

}  // namespace sse2

using sse2::quotes;
using sse2::quotes_and_backslashes;
using sse2::quotes_and_brackets;

#else

using portable::quotes;
using portable::quotes_and_backslashes;
using portable::quotes_and_brackets;

#endif

/// Whether four blocks in a row hold neither a quote nor a bracket, as inside an array of numbers.
inline bool four_are_plain(const char* bytes) {
#ifdef __SSE2__
  const __m128i front = _mm_or_si128(sse2::quote_or_bracket(bytes), sse2::quote_or_bracket(bytes + kSize));
  const __m128i back =
      _mm_or_si128(sse2::quote_or_bracket(bytes + 2 * kSize), sse2::quote_or_bracket(bytes + 3 * kSize));
  return sse2::to_mask(_mm_or_si128(front, back)) == 0;
#else
  return (portable::quotes_and_brackets(bytes) | portable::quotes_and_brackets(bytes + kSize) |
          portable::quotes_and_brackets(bytes + 2 * kSize) |
          portable::quotes_and_brackets(bytes + 3 * kSize)) == 0;
#endif
}

}  // namespace handoff::json::block
