#include "epp/selection/blake3.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace handoff::epp {
namespace {

using Words8 = std::array<std::uint32_t, 8>;
using Words16 = std::array<std::uint32_t, 16>;
using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t kBlockBytes = 64;
constexpr std::size_t kChunkBytes = 1024;
// SHA-256's initial values, as in BLAKE2s.
constexpr Words8 kInitial = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                             0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
constexpr std::array<std::uint8_t, 16> kPermutation = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};

// Domain separation flags of the specification.
constexpr std::uint32_t kChunkStart = 1;
constexpr std::uint32_t kChunkEnd = 2;
constexpr std::uint32_t kParent = 4;
constexpr std::uint32_t kRoot = 8;
constexpr std::uint32_t kKeyed = 16;

void mix(Words16& v, std::size_t a, std::size_t b, std::size_t c, std::size_t d, std::uint32_t x,
         std::uint32_t y) {
  v[a] += v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 12);
  v[a] += v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 8);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 7);
}

Words8 compress(const Words8& chaining, Words16 message, std::uint64_t counter, std::size_t length,
                std::uint32_t flags) {
  Words16 v{};
  std::copy(chaining.begin(), chaining.end(), v.begin());
  std::copy_n(kInitial.begin(), 4, v.begin() + 8);
  v[12] = static_cast<std::uint32_t>(counter);
  v[13] = static_cast<std::uint32_t>(counter >> 32);
  v[14] = static_cast<std::uint32_t>(length);
  v[15] = flags;
  constexpr int kRounds = 7;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < 4; ++i) mix(v, i, 4 + i, 8 + i, 12 + i, message[2 * i], message[2 * i + 1]);
    for (std::size_t i = 0; i < 4; ++i) {
      mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, message[8 + 2 * i], message[9 + 2 * i]);
    }
    Words16 permuted{};
    for (std::size_t i = 0; i < permuted.size(); ++i) permuted[i] = message[kPermutation[i]];
    message = permuted;
  }
  Words8 out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = v[i] ^ v[i + 8];
  return out;
}

Words16 words_of(Bytes block) {
  Words16 words{};
  for (std::size_t i = 0; i < block.size(); ++i) {
    words[i / 4] |= std::uint32_t{block[i]} << (8 * (i % 4));
  }
  return words;
}

Words8 hash_chunk(const Words8& key, Bytes chunk, std::uint64_t number, std::uint32_t root) {
  Words8 chaining = key;
  std::uint32_t flags = kKeyed | kChunkStart;
  while (chunk.size() > kBlockBytes) {
    chaining = compress(chaining, words_of(chunk.first(kBlockBytes)), number, kBlockBytes, flags);
    chunk = chunk.subspan(kBlockBytes);
    flags = kKeyed;
  }
  return compress(chaining, words_of(chunk), number, chunk.size(), flags | kChunkEnd | root);
}

// The left subtree is the largest full one that leaves something to the right. The depth is the logarithm of
// the length, so recursion is bounded.
Words8 hash_tree(const Words8& key, Bytes message, std::uint64_t first_chunk, std::uint32_t root) {
  if (message.size() <= kChunkBytes) return hash_chunk(key, message, first_chunk, root);
  const std::size_t left_chunks = std::bit_floor((message.size() - 1) / kChunkBytes);
  const Words8 left = hash_tree(key, message.first(left_chunks * kChunkBytes), first_chunk, 0);
  const Words8 right =
      hash_tree(key, message.subspan(left_chunks * kChunkBytes), first_chunk + left_chunks, 0);
  Words16 both{};
  std::copy(left.begin(), left.end(), both.begin());
  std::copy(right.begin(), right.end(), both.begin() + 8);
  return compress(key, both, 0, kBlockBytes, kKeyed | kParent | root);
}

}  // namespace

std::array<std::uint8_t, 32> blake3_keyed(const std::array<std::uint8_t, 32>& key,
                                          std::span<const std::uint8_t> message) {
  Words8 key_words{};
  const Words16 padded = words_of(key);
  std::copy_n(padded.begin(), key_words.size(), key_words.begin());
  const Words8 words = hash_tree(key_words, message, 0, kRoot);
  std::array<std::uint8_t, 32> digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
  return digest;
}

}  // namespace handoff::epp
