#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <mutex>
#include <unordered_map>

#include "epp/tokenization/tokenizer_protocol.hpp"

namespace handoff::epp {

// Known prompts, bounded by bytes, the least recently used ones forgotten first. Any thread; a look-up holds
// one shard's lock for as long as a hash table takes.
class PromptCache {
 public:
  // 0: keeps nothing.
  explicit PromptCache(std::size_t max_bytes) : max_shard_bytes_(max_bytes / kShards) {}

  // Null when it is not known.
  TokenizedPrompts find(const PromptKey& key);
  // A value that is larger than a shard may be is not kept.
  void put(const PromptKey& key, TokenizedPrompts prompts);
  std::size_t bytes() const;

 private:
  static constexpr std::size_t kShards = 8;

  struct KeyHash {
    std::size_t operator()(const PromptKey& key) const { return key[1]; }
  };
  struct Entry {
    PromptKey key;
    TokenizedPrompts prompts;
    std::size_t bytes;
  };
  struct Shard {
    mutable std::mutex mutex;
    std::list<Entry> by_use;  // the latest first
    std::unordered_map<PromptKey, std::list<Entry>::iterator, KeyHash> by_key;
    std::size_t bytes = 0;
  };

  Shard& shard_of(const PromptKey& key) { return shards_[key[0] % kShards]; }

  const std::size_t max_shard_bytes_;
  std::array<Shard, kShards> shards_;
};

}  // namespace handoff::epp
