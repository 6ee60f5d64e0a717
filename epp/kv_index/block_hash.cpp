#include "epp/kv_index/block_hash.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

// The whole of XXH3 in this file: with a length known at compile time it shrinks to a few instructions, and a
// call per block would cost as much as the hash.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace handoff::epp {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token ids and hashes are hashed as little-endian bytes");

constexpr std::size_t kHexDigestDigits = 64;
constexpr std::size_t kHexIdDigits = 16;
constexpr std::size_t kScratchWords = 512;

std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

std::uint64_t chain(std::uint64_t parent, std::uint64_t local, std::uint64_t seed) {
  const std::uint64_t words[2] = {parent, local};
  return XXH3_64bits_withSeed(words, sizeof(words), seed);
}

// Blocks of plain text. With the size known at compile time XXH3 is straight code, and the next block's hash
// is under way while the chain, where each step waits for the one before, catches up.
template <std::size_t kTokens>
void hash_text_blocks(const std::uint32_t* tokens, std::uint64_t seed, std::span<std::uint64_t> local,
                      std::uint64_t* sequence) {
  std::uint64_t parent = 0;
  for (std::size_t i = 0; i < local.size(); ++i) {
    const std::uint64_t hash =
        XXH3_64bits_withSeed(tokens + i * kTokens, kTokens * sizeof(std::uint32_t), seed);
    local[i] = hash;
    parent = i == 0 ? hash : chain(parent, hash, kChainSeed);
    sequence[i] = parent;
  }
}

template <std::size_t kTokens>
void hash_blocks_alone(const std::uint32_t* tokens, std::uint64_t seed, std::span<std::uint64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = XXH3_64bits_withSeed(tokens + i * kTokens, kTokens * sizeof(std::uint32_t), seed);
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::uint64_t hash_with_media(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> media,
                              std::uint64_t seed) {
  std::uint32_t scratch[kScratchWords];
  std::vector<std::uint32_t> large;
  const std::size_t words = tokens.size() + 2 * media.size();
  std::uint32_t* buffer = scratch;
  if (words > kScratchWords) {
    large.resize(words);
    buffer = large.data();
  }
  std::copy(tokens.begin(), tokens.end(), buffer);
  std::vector<std::uint64_t> sorted(media.begin(), media.end());
  std::sort(sorted.begin(), sorted.end());
  std::memcpy(buffer + tokens.size(), sorted.data(), sorted.size() * sizeof(std::uint64_t));
  return hash_bytes(buffer, words * sizeof(std::uint32_t), seed);
}

}  // namespace

std::uint64_t request_seed(std::string_view lora_name, std::string_view cache_salt) {
  std::uint64_t seed = kChainSeed;
  if (!lora_name.empty()) seed += hash_bytes(lora_name.data(), lora_name.size(), 0);
  if (!cache_salt.empty()) seed += hash_bytes(cache_salt.data(), cache_salt.size(), 1);
  return seed;
}

std::size_t complete_blocks(std::size_t token_count, std::uint32_t block_size, bool is_eagle) {
  if (block_size == 0) return 0;
  if (!is_eagle) return token_count / block_size;
  return token_count == 0 ? 0 : (token_count - 1) / block_size;
}

std::uint64_t local_block_hash(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> media,
                               std::uint64_t seed) {
  if (media.empty()) return hash_bytes(tokens.data(), tokens.size_bytes(), seed);
  return hash_with_media(tokens, media, seed);
}

void local_block_hashes(std::span<const std::uint32_t> tokens, std::uint32_t block_size, std::uint64_t seed,
                        std::span<std::uint64_t> out) {
  if (block_size == 16) return hash_blocks_alone<16>(tokens.data(), seed, out);
  if (block_size == 32) return hash_blocks_alone<32>(tokens.data(), seed, out);
  if (block_size == 64) return hash_blocks_alone<64>(tokens.data(), seed, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto block = tokens.subspan(i * block_size, block_size);
    out[i] = hash_bytes(block.data(), block.size_bytes(), seed);
  }
}

std::uint64_t chain_hash(std::uint64_t parent, std::uint64_t local, std::uint64_t seed) {
  return chain(parent, local, seed);
}

void chain_hashes(std::optional<std::uint64_t> parent, std::span<const std::uint64_t> locals,
                  std::uint64_t* out) {
  if (locals.empty()) return;
  std::uint64_t hash = parent ? chain(*parent, locals[0], kChainSeed) : locals[0];
  out[0] = hash;
  for (std::size_t i = 1; i < locals.size(); ++i) {
    hash = chain(hash, locals[i], kChainSeed);
    out[i] = hash;
  }
}

void hash_request(std::span<const std::uint32_t> tokens, std::uint32_t block_size, const HashOptions& options,
                  RequestHashes& out) {
  const std::size_t blocks = complete_blocks(tokens.size(), block_size, options.is_eagle);
  const std::size_t window = std::size_t{block_size} + (options.is_eagle ? 1 : 0);
  const std::uint64_t seed = request_seed(options.lora_name, options.cache_salt);
  out.local.resize(blocks);
  out.sequence.resize(blocks);
  if (options.media.empty() && !options.is_eagle && block_size == 16) {
    hash_text_blocks<16>(tokens.data(), seed, out.local, out.sequence.data());
    return;
  }
  if (options.media.empty() && !options.is_eagle && block_size == 32) {
    hash_text_blocks<32>(tokens.data(), seed, out.local, out.sequence.data());
    return;
  }
  std::uint64_t parent = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto block = tokens.subspan(i * block_size, window);
    const bool has_media = i < options.media.size() && !options.media[i].empty();
    const std::uint64_t local = has_media ? hash_with_media(block, options.media[i], seed)
                                          : hash_bytes(block.data(), block.size_bytes(), seed);
    parent = i == 0 ? local : chain(parent, local, kChainSeed);
    out.local[i] = local;
    out.sequence[i] = parent;
  }
}

std::vector<std::uint64_t> hash_request(std::span<const std::uint32_t> tokens, std::uint32_t block_size,
                                        const HashOptions& options) {
  RequestHashes hashes;
  hash_request(tokens, block_size, options, hashes);
  return std::move(hashes.sequence);
}

std::uint32_t media_pad_token(std::uint64_t media_hash) {
  constexpr std::uint32_t kFirstPad = 1'000'000;
  constexpr std::uint64_t kPadMask = (std::uint64_t{1} << 30) - 1;
  return kFirstPad + static_cast<std::uint32_t>(media_hash & kPadMask);
}

std::optional<std::uint64_t> media_id(std::string_view identifier, bool marked) {
  const bool is_digest =
      identifier.size() == kHexDigestDigits &&
      std::all_of(identifier.begin(), identifier.end(), [](char c) { return hex_value(c) >= 0; });
  if (is_digest) {
    std::uint64_t id = 0;
    for (const char c : identifier.substr(0, kHexIdDigits))
      id = id << 4 | static_cast<std::uint64_t>(hex_value(c));
    return id;
  }
  if (!marked || identifier.empty()) return std::nullopt;
  return hash_bytes(identifier.data(), identifier.size(), 0);
}

}  // namespace handoff::epp
