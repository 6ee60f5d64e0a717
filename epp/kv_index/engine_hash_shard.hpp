#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "epp/kv_index/block_shard.hpp"
#include "epp/kv_index/table_memory.hpp"

namespace handoff::epp {

// An engine's block hash, scrambled like a BlockKey. What it means is the engine's affair.
using EngineKey = std::uint64_t;

// One shard of the table engine hash -> blocks. Events name blocks by engine hashes: this is how a removal or
// a parent finds its block. Shared by all ranks, because engines of one kind and configuration agree on their
// hashes; where they don't, each rank's hashes have entries of their own. One hash may stand for several
// blocks (salt or LoRA outside the engine's hash).
//
// Everything needs mutex(). Linear probing with entries in the order of their keys: a search ends at the
// first greater key, and a removal closes its gap, so nothing is left behind by churn.
class EngineHashShard {
 public:
  struct Entry {
    EngineKey engine = 0;
    BlockKey block = 0;
  };
  // Enough for any engine; bounds what a hostile one can make us walk.
  static constexpr std::size_t kMaxBlocksPerHash = 8;

  struct Found {
    std::size_t count = 0;
    BlockKey blocks[kMaxBlocksPerHash];
  };

  enum class Added : std::uint8_t { added, present, too_many };

  EngineHashShard() = default;
  EngineHashShard(const EngineHashShard&) = delete;
  EngineHashShard& operator=(const EngineHashShard&) = delete;

  // Before first use; not thread-safe. The table's size to begin with, and the least it shrinks to.
  void open(std::size_t first_slots);

  std::mutex& mutex() { return mutex_; }

  void prefetch(EngineKey engine) const {
    const Entry* data = data_.load(std::memory_order_relaxed);
    const std::size_t slots = data_slots_.load(std::memory_order_relaxed);
    if (data == nullptr) return;
    // A search seldom goes further than two entries. That can be the next cache line.
    const Entry* home = data + ((engine & 0xFFFFFFFFU) * slots >> 32);
    __builtin_prefetch(home);
    __builtin_prefetch(home + 2);
  }
  Found find(EngineKey engine) const;
  // Grows when full(); a caller that knows of entries to drop purges first.
  Added add(EngineKey engine, BlockKey block);
  bool full() const { return size() >= full_at_; }
  bool erase(EngineKey engine, BlockKey block);

  // Drops entries whose block is gone: keep(engine, block) tells. Also gives memory back when much was
  // dropped.
  template <typename Keep>
  void purge(Keep&& keep);

  // Some entry, a different one each time, for eviction. There must be one.
  Entry next_victim();

  std::size_t size() const { return size_.load(std::memory_order_relaxed); }
  std::size_t table_bytes() const { return table_bytes_.load(std::memory_order_relaxed); }

 private:
  // Full at 4/5, 3/5 after growing. Fuller, and making room for an entry (or growing again) costs more than
  // the memory is worth.
  std::size_t slots_for(std::size_t size) const { return std::max(first_slots_, size + size * 2 / 3 + 8); }

  static bool is_free(const Entry& entry) { return entry.block == 0; }
  std::span<Entry> entries() const { return {entries_, capacity_}; }
  std::size_t home(EngineKey engine) const { return (engine & 0xFFFFFFFFU) * slots_ >> 32; }
  // The probing order. Home grows with the low half of the key.
  static std::uint64_t order(EngineKey engine) { return engine << 32 | engine >> 32; }
  // Not an atomic addition: there is one writer, and the barrier would make each insert wait for its cache
  // miss.
  void set_size(std::size_t size) { size_.store(size, std::memory_order_relaxed); }
  void resize(std::size_t slots);
  void adopt(const std::vector<Entry>& entries, std::size_t slots);
  bool fill(const std::vector<Entry>& entries, std::size_t capacity);

  // slots_ homes and behind them some room, so that probing never wraps around; the last one stays free.
  TableMemory memory_;
  Entry* entries_ = nullptr;
  std::size_t capacity_ = 0;
  // A copy of the address for prefetch(), which looks without the lock.
  std::atomic<const Entry*> data_{nullptr};
  std::atomic<std::size_t> data_slots_{0};
  std::size_t slots_ = 0;
  std::size_t full_at_ = 0;
  std::size_t first_slots_ = 16;
  std::size_t hand_ = 0;
  std::atomic<std::size_t> size_{0};
  std::atomic<std::size_t> table_bytes_{0};
  alignas(64) std::mutex mutex_;
};

template <typename Keep>
void EngineHashShard::purge(Keep&& keep) {
  std::vector<Entry> kept;
  kept.reserve(size());
  for (const Entry& entry : entries()) {
    if (!is_free(entry) && keep(entry.engine, entry.block)) kept.push_back(entry);
  }
  adopt(kept, slots_for(kept.size()));
}

}  // namespace handoff::epp
