// Which blocks hold which full block of which prefix: a hash chain over tokens, as vLLM's automatic prefix
// caching. No I/O; what changes is collected as events for the publisher.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "block_pool.hpp"
#include "tokenizer.hpp"

namespace handoff::mock {

using BlockDigest = std::array<std::uint8_t, 32>;

// One change of the cache, in the order they happened.
struct CacheEvent {
  enum class Kind { kStored, kRemoved, kCleared };
  Kind kind = Kind::kCleared;
  std::int64_t rank = 0;
  std::vector<BlockDigest> blocks;  // stored: consecutive ones of one prefix
  std::vector<BlockDigest> plain;   // the same without the salt in the hash (SGLang)
  std::optional<BlockDigest> parent;
  std::optional<BlockDigest> plain_parent;
  Tokens tokens;
  std::string salt;
};

// How far one sequence of blocks is in the cache. Lives with the request.
struct CachedSequence {
  std::int64_t rank = 0;
  std::string salt;
  std::size_t blocks = 0;  // its first blocks, so many, are cached
  BlockDigest last{};      // hash of the last of them, and of the prefix before it
  BlockDigest last_plain{};
};

// Owned by Engine, used from its single thread. Blocks are forgotten when the pool hands them out for
// something else, never earlier. The ranks of a data-parallel engine share the pool, not the contents.
class PrefixCache {
 public:
  // Without `enabled` nothing is ever found.
  PrefixCache(BlockPool& pool, std::int64_t block_size, std::int64_t ranks, bool enabled);

  // The blocks that hold `prompt`'s first blocks already, never all of its tokens: there must be one to
  // sample from. `sequence` names rank and salt and is set to where they end. The caller shares the blocks.
  BlockIds find(const Tokens& prompt, CachedSequence& sequence) const;
  // `blocks` hold `tokens`: every full block that is not in the cache yet comes into it.
  void store(const Tokens& tokens, const BlockIds& blocks, CachedSequence& sequence);

  // All contents gone; with `announce` as an event (a reset), without silently (a restart).
  void clear(bool announce);

  std::vector<CacheEvent> take_events();
  std::int64_t size() const;

 private:
  struct DigestHash {
    std::size_t operator()(const BlockDigest& digest) const {
      std::size_t value = 0;
      std::memcpy(&value, digest.data(), sizeof value);
      return value;
    }
  };
  struct Content {
    std::int64_t rank = -1;  // -1: nothing known to be in it
    BlockDigest digest{};
    BlockDigest plain{};
  };

  void forget(std::int64_t id);

  std::size_t block_size_;
  bool enabled_;
  std::vector<std::unordered_map<BlockDigest, std::int64_t, DigestHash>> by_digest_;  // one per rank
  std::vector<Content> contents_;                                                     // by block
  std::vector<CacheEvent> events_;
};

}  // namespace handoff::mock
