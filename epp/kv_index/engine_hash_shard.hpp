#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "epp/kv_index/block_shard.hpp"
#include "epp/kv_index/bucket_table.hpp"
#include "epp/kv_index/read_epochs.hpp"

namespace handoff::epp {

// An engine's block hash, scrambled like a BlockKey. What it means is the engine's affair.
using EngineKey = std::uint64_t;

// One shard of the table engine hash -> blocks. Events name blocks by engine hashes: this is how a removal or
// a parent finds its block. Shared by all ranks, because engines of one kind and configuration agree on their
// hashes; where they don't, each rank's hashes have entries of their own. One hash may stand for several
// blocks (salt or LoRA outside the engine's hash).
//
// Everything needs mutex(), apart from the prefetches. Buckets of four entries, filled from the front and
// probed in order: a search ends at the first bucket with room, and a removal pulls back whoever was sent
// past its bucket, so nothing is left behind by churn.
class EngineHashShard {
 public:
  struct Entry {
    EngineKey engine = 0;
    BlockKey block = 0;  // 0: free
  };
  // Bounds what hostile engines can make us walk. Where salts are outside of the hash, each tenant with the
  // same system prompt is one; the owner sees to it that no rank takes them all.
  static constexpr std::size_t kMaxBlocksPerHash = 512;
  static constexpr std::size_t kManyBlocksPerHash = 64;

  struct Found {
    std::size_t count = 0;
    BlockKey blocks[kMaxBlocksPerHash];
  };

  enum class Added : std::uint8_t {
    added,
    added_to_many,  // the hash had kManyBlocksPerHash or more before
    present,
    too_many  // kMaxBlocksPerHash: not added
  };

  static constexpr std::size_t kBucketEntries = 4;
  struct alignas(64) Bucket {
    Entry entries[kBucketEntries];
  };

  EngineHashShard() = default;
  EngineHashShard(const EngineHashShard&) = delete;
  EngineHashShard& operator=(const EngineHashShard&) = delete;
  ~EngineHashShard() { delete table_.load(); }

  // Before first use; not thread-safe. `max_size`: see has_room(). `memory` is the table's to begin with, and
  // the least it shrinks to.
  void open(ReadEpochs& epochs, std::size_t max_size, TableMemory memory);

  std::mutex& mutex() { return mutex_; }

  // Without the lock; a ReadEpochs::Pin keeps the memory. As those of BlockShard.
  void prefetch(EngineKey engine) const {
    __builtin_prefetch(table_.load(std::memory_order_acquire)->home(engine));
  }
  void prefetch_overflow(EngineKey engine) const;

  Found find(EngineKey engine) const;
  // Only with has_room().
  Added add(EngineKey engine, BlockKey block);
  // For another entry. Otherwise: at_limit(), where one has to be erased first, or the table has to grow().
  bool has_room() const { return size() < room_; }
  bool at_limit() const { return size() >= max_size_; }
  void grow() {
    if (size() >= full_at_) resize();
  }
  bool erase(EngineKey engine, BlockKey block);
  // Makes the table so large now, and from now on the least that it shrinks to.
  void expect(std::size_t buckets) {
    first_buckets_ = buckets;
    if (table_.load(std::memory_order_relaxed)->buckets() < buckets) resize();
  }

  // Drops entries whose block is gone: keep(engine, block) tells. Also gives memory back when much was
  // dropped.
  template <typename Keep>
  void purge(Keep&& keep);

  // Some entry, a different one each time, for eviction. There must be one.
  Entry next_victim();

  std::size_t size() const { return size_.load(std::memory_order_relaxed); }
  std::size_t table_bytes() const { return table_bytes_.load(std::memory_order_relaxed); }

 private:
  using Table = BucketTable<Bucket>;

  static bool is_free(const Entry& entry) { return entry.block == 0; }
  // prefetch_overflow() looks without the lock.
  static void set(Entry& entry, EngineKey engine, BlockKey block) {
    entry.engine = engine;
    std::atomic_ref<BlockKey>(entry.block).store(block, std::memory_order_relaxed);
  }
  static std::size_t used_in(const Bucket& bucket);
  Added search_and_add(EngineKey engine, BlockKey block);
  static void put(const Table& table, const Entry& entry);

  std::size_t buckets_for(std::size_t size) const;
  void resize();  // to what the number of entries asks for
  void replace(Table* table);
  void fill_hole(Bucket* bucket, std::size_t index);
  // Not an atomic addition: there is one writer, and the barrier would make each insert wait for its cache
  // miss.
  void set_size(std::size_t size) { size_.store(size, std::memory_order_relaxed); }

  std::atomic<Table*> table_{nullptr};
  ReadEpochs* epochs_ = nullptr;
  std::size_t room_ = 0;
  std::size_t full_at_ = 0;
  std::size_t max_size_ = 0;
  std::size_t first_buckets_ = 1;
  std::size_t hand_ = 0;
  std::atomic<std::size_t> size_{0};
  std::atomic<std::size_t> table_bytes_{0};
  alignas(64) std::mutex mutex_;
};

inline void EngineHashShard::prefetch_overflow(EngineKey engine) const {
  Bucket* const home = table_.load(std::memory_order_acquire)->home(engine);
  const std::atomic_ref<BlockKey> last(home->entries[kBucketEntries - 1].block);
  const bool is_full = last.load(std::memory_order_relaxed) != 0;
  __builtin_prefetch(home + (is_full ? 1 : 0));
}

// Without a branch: how full a bucket is can't be predicted.
inline std::size_t EngineHashShard::used_in(const Bucket& bucket) {
  const auto one = [&](std::size_t i) { return is_free(bucket.entries[i]) ? std::size_t{0} : 1; };
  static_assert(kBucketEntries == 4);
  return one(0) + one(1) + one(2) + one(3);
}

inline EngineHashShard::Added EngineHashShard::add(EngineKey engine, BlockKey block) {
  const Table& table = *table_.load(std::memory_order_relaxed);
  for (Bucket* bucket = table.home(engine);; bucket = table.next(bucket)) {
    const Entry* const entries = bucket->entries;
    const auto has_key = [&](std::size_t i) { return entries[i].engine == engine ? 1U : 0U; };
    const std::size_t used = used_in(*bucket);
    if ((has_key(0) | has_key(1) | has_key(2) | has_key(3)) != 0) {  // without branches
      const std::size_t i =
          (has_key(1) != 0 ? 1U : 0U) | (has_key(2) != 0 ? 2U : 0U) | (has_key(3) != 0 ? 3U : 0U);
      const bool is_same = has_key(i) != 0 && entries[i].block == block;
      return is_same ? Added::present : search_and_add(engine, block);
    }
    if (used == kBucketEntries) continue;
    set(bucket->entries[used], engine, block);
    set_size(size() + 1);
    return Added::added;
  }
}

template <typename Keep>
void EngineHashShard::purge(Keep&& keep) {
  std::vector<Entry> kept;
  kept.reserve(size());
  for (const Bucket& bucket : *table_.load(std::memory_order_relaxed)) {
    for (const Entry& entry : bucket.entries) {
      if (!is_free(entry) && keep(entry.engine, entry.block)) kept.push_back(entry);
    }
  }
  auto* const table = new Table(buckets_for(kept.size()));
  for (const Entry& entry : kept) put(*table, entry);
  replace(table);
  set_size(kept.size());
}

}  // namespace handoff::epp
