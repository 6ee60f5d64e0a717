#include "epp/tokenization/prompt_cache.hpp"

#include <utility>

namespace handoff::epp {
namespace {

// What the two tables take for an entry, about.
constexpr std::size_t kEntryOverhead = 256;

std::size_t size_of(const std::vector<TokenizedPrompt>& prompts) {
  std::size_t bytes = kEntryOverhead;
  for (const TokenizedPrompt& prompt : prompts) {
    bytes += sizeof prompt + prompt.token_ids.capacity() * sizeof(std::uint32_t) +
             prompt.media.capacity() * sizeof(MediaSpan);
  }
  return bytes;
}

}  // namespace

TokenizedPrompts PromptCache::find(const PromptKey& key) {
  if (max_shard_bytes_ == 0) return nullptr;
  Shard& shard = shard_of(key);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.by_key.find(key);
  if (found == shard.by_key.end()) return nullptr;
  shard.by_use.splice(shard.by_use.begin(), shard.by_use, found->second);
  return found->second->prompts;
}

void PromptCache::put(const PromptKey& key, TokenizedPrompts prompts) {
  const std::size_t bytes = size_of(*prompts);
  if (bytes > max_shard_bytes_) return;
  Shard& shard = shard_of(key);
  std::list<Entry> dropped;  // freed after the lock
  const std::lock_guard lock(shard.mutex);
  if (shard.by_key.contains(key)) return;
  while (shard.bytes + bytes > max_shard_bytes_) {
    const auto last = std::prev(shard.by_use.end());
    shard.bytes -= last->bytes;
    shard.by_key.erase(last->key);
    dropped.splice(dropped.begin(), shard.by_use, last);
  }
  shard.by_use.push_front({key, std::move(prompts), bytes});
  shard.by_key.emplace(key, shard.by_use.begin());
  shard.bytes += bytes;
}

std::size_t PromptCache::bytes() const {
  std::size_t sum = 0;
  for (const Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    sum += shard.bytes;
  }
  return sum;
}

}  // namespace handoff::epp
