#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "epp/kv_index/holder_set.hpp"
#include "epp/kv_index/read_epochs.hpp"
#include "epp/kv_index/table_memory.hpp"

namespace handoff::epp {

// The key of a block in the tables: a sequence hash, scrambled with this process's secret. Prompts choose
// hashes, so they must not also choose the places in a table.
using BlockKey = std::uint64_t;

// One shard of the table block -> holders. Readers need a ReadEpochs::Pin and no lock; everything else needs
// mutex().
//
// Cache-line buckets of four slots, probed in order. A slot keeps its key and place until the table is
// rebuilt, which makes reads safe: a removed block leaves a tombstone, and a rebuild makes a new table and
// retires the old one.
class BlockShard {
 public:
  struct Slot {
    std::atomic<BlockKey> key{0};
    std::atomic<std::uint64_t> bits{0};  // of the HolderRef, and kRecent
  };

  BlockShard() = default;
  BlockShard(const BlockShard&) = delete;
  BlockShard& operator=(const BlockShard&) = delete;
  ~BlockShard();

  // Before first use; not thread-safe.
  // `first_slots`: the table's size to begin with, and the least it shrinks to.
  void open(ReadEpochs& epochs, HolderPool& pool, std::size_t max_blocks, std::size_t first_slots);

  std::mutex& mutex() { return mutex_; }

  // --- readers ---
  HolderRef find(BlockKey key) const { return holders_of(find_bits(key, false)); }
  // Also protects the block from eviction, where that matters.
  HolderRef find_and_mark(BlockKey key) const {
    return holders_of(find_bits(key, pressure_.load(std::memory_order_relaxed)));
  }
  void prefetch(BlockKey key) const;
  // When prefetch() has done its work: asks for the second bucket where the first one is full.
  void prefetch_overflow(BlockKey key) const;

  // --- writers, under mutex() ---
  // The slot of a block that is there, else null. Valid until the next insert.
  Slot* locate(BlockKey key);
  static HolderRef holders(const Slot& slot) { return holders_of(slot.bits.load(std::memory_order_relaxed)); }
  // Takes over the caller's reference and gives the old one back. Empty holders remove the block.
  void replace(Slot& slot, HolderRef holders);
  // Where the block is (`found`), or where it would go: for insert() with nothing in between.
  struct Place {
    Slot* slot;
    bool found;
  };
  Place place_of(BlockKey key);
  // `place` says that `key` is not there. Takes over the reference. May evict another block; true if it did.
  bool insert(Place place, BlockKey key, HolderRef holders);
  void shrink_if_sparse();

  // Calls edit(HolderRef) -> HolderRef (a new reference, or the same bits for "leave it") for up to `budget`
  // slots from position `from` on; returns where to go on, nullopt at the end. A rebuild in between moves
  // slots: generation() tells.
  template <typename Edit>
  std::optional<std::size_t> edit_range(std::size_t from, std::size_t budget, Edit&& edit);
  std::uint64_t generation() const { return generation_; }

  std::size_t blocks() const { return live_.load(std::memory_order_relaxed); }
  std::size_t table_bytes() const { return table_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kTombstone = 1;
  static constexpr std::uint64_t kRecent =
      1;  // on a live slot: matched or stored again since the eviction hand came by
  static constexpr std::size_t kBucketSlots = 4;
  static constexpr unsigned kAllSlots = (1U << kBucketSlots) - 1;

  struct alignas(64) Bucket {
    Slot slots[kBucketSlots];
  };
  struct Table;

  static HolderRef holders_of(std::uint64_t bits) { return HolderRef::from_bits(bits & ~kRecent); }
  static bool is_live(std::uint64_t bits) { return bits > kTombstone; }

  // Not an atomic addition: there is one writer, and the barrier would make each insert wait for its cache
  // miss.
  void set_blocks(std::size_t blocks) { live_.store(blocks, std::memory_order_relaxed); }
  std::uint64_t find_bits(BlockKey key, bool mark) const;
  void rebuild(std::size_t buckets);
  void make_room();
  void evict_one();
  static void put(Table& table, BlockKey key, std::uint64_t bits);

  std::atomic<Table*> table_{nullptr};
  std::atomic<bool> pressure_{false};
  ReadEpochs* epochs_ = nullptr;
  HolderPool* pool_ = nullptr;
  std::size_t max_blocks_ = 0;
  std::size_t first_buckets_ = 1;
  std::size_t used_ = 0;  // live and tombstones
  std::size_t hand_ = 0;  // of the eviction clock, a slot
  std::uint64_t generation_ = 0;
  std::atomic<std::size_t> live_{0};
  std::atomic<std::size_t> table_bytes_{0};
  alignas(64) std::mutex mutex_;
};

struct BlockShard::Table {
  std::size_t buckets;
  TableMemory memory;
  Bucket* data;

  explicit Table(std::size_t count);

  // The shard was chosen by other bits of the key, so the low half is as good as new.
  Bucket& home(BlockKey key) const { return data[(key & 0xFFFFFFFFU) * buckets >> 32]; }
  Bucket* next(Bucket* bucket) const { return ++bucket == data + buckets ? data : bucket; }
};

inline void BlockShard::prefetch(BlockKey key) const {
  __builtin_prefetch(&table_.load(std::memory_order_acquire)->home(key));
}

inline void BlockShard::prefetch_overflow(BlockKey key) const {
  const Bucket* home = &table_.load(std::memory_order_acquire)->home(key);
  const bool is_full = home->slots[kBucketSlots - 1].bits.load(std::memory_order_relaxed) != 0;
  __builtin_prefetch(home + (is_full ? 1 : 0));  // without a branch, which could not be predicted
}

template <typename Edit>
std::optional<std::size_t> BlockShard::edit_range(std::size_t from, std::size_t budget, Edit&& edit) {
  Table& table = *table_.load(std::memory_order_relaxed);
  const std::size_t slots = table.buckets * kBucketSlots;
  const std::size_t end = from + budget < slots ? from + budget : slots;
  for (std::size_t i = from; i < end; ++i) {
    Slot& slot = table.data[i / kBucketSlots].slots[i % kBucketSlots];
    const std::uint64_t bits = slot.bits.load(std::memory_order_relaxed);
    if (!is_live(bits)) continue;
    const HolderRef before = holders_of(bits);
    const HolderRef after = edit(before);
    if (after != before) replace(slot, after);
  }
  if (end == slots) return std::nullopt;
  return end;
}

}  // namespace handoff::epp
