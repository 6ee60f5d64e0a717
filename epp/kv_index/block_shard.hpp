#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "epp/kv_index/bucket_table.hpp"
#include "epp/kv_index/holder_set.hpp"
#include "epp/kv_index/read_epochs.hpp"

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

  static constexpr std::size_t kBucketSlots = 4;
  struct alignas(64) Bucket {
    Slot slots[kBucketSlots];
  };

  BlockShard() = default;
  BlockShard(const BlockShard&) = delete;
  BlockShard& operator=(const BlockShard&) = delete;
  ~BlockShard();

  // Before first use; not thread-safe.
  // `memory` is the table's to begin with, and the least it shrinks to.
  void open(ReadEpochs& epochs, HolderPool& pool, std::size_t max_blocks, TableMemory memory);

  std::mutex& mutex() { return mutex_; }

  // --- readers ---
  HolderRef find(BlockKey key) const { return holders_of(find_bits(key, false)); }
  // Also protects the block from eviction, where that matters.
  HolderRef find_and_mark(BlockKey key) const {
    return holders_of(find_bits(key, pressure_.load(std::memory_order_relaxed)));
  }
  // Returns what prefetch_overflow() takes: when the first bucket has come, it asks for the second where the
  // first one is full.
  const Bucket* prefetch(BlockKey key) const;
  static void prefetch_overflow(const Bucket* home);

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
  // Makes the table so large now, and from now on the least that it shrinks to.
  void expect(std::size_t buckets);
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

  using Table = BucketTable<Bucket>;

  static HolderRef holders_of(std::uint64_t bits) { return HolderRef::from_bits(bits & ~kRecent); }
  static bool is_live(std::uint64_t bits) { return bits > kTombstone; }

  // Not an atomic addition: there is one writer, and the barrier would make each insert wait for its cache
  // miss.
  void set_blocks(std::size_t blocks) { live_.store(blocks, std::memory_order_relaxed); }
  std::uint64_t find_bits(BlockKey key, bool mark) const;
  void rebuild(std::size_t buckets);
  Place search(BlockKey key);
  // Before an insert that may need room: makes it, evicting when it must (true), and looks for a new place
  // then.
  bool prepare_insert(Place& place, BlockKey key);
  void make_room();
  void adopt(Table* table);
  void evict_one();
  static void put(Table& table, BlockKey key, std::uint64_t bits);

  std::atomic<Table*> table_{nullptr};
  std::atomic<bool> pressure_{false};
  ReadEpochs* epochs_ = nullptr;
  HolderPool* pool_ = nullptr;
  std::size_t max_blocks_ = 0;
  std::size_t first_buckets_ = 1;
  std::size_t used_ = 0;     // live and tombstones
  std::size_t care_at_ = 0;  // of used_: below it there is room, and no pressure
  std::size_t hand_ = 0;     // of the eviction clock, a slot
  std::uint64_t generation_ = 0;
  std::atomic<std::size_t> live_{0};
  std::atomic<std::size_t> table_bytes_{0};
  alignas(64) std::mutex mutex_;
};

inline const BlockShard::Bucket* BlockShard::prefetch(BlockKey key) const {
  const Bucket* const home = table_.load(std::memory_order_acquire)->home(key);
  __builtin_prefetch(home);
  return home;
}

inline void BlockShard::prefetch_overflow(const Bucket* home) {
  const bool is_full = home->slots[kBucketSlots - 1].bits.load(std::memory_order_relaxed) != 0;
  __builtin_prefetch(home + (is_full ? 1 : 0));  // without a branch, which could not be predicted
}

inline BlockShard::Place BlockShard::place_of(BlockKey key) {
  const Table& table = *table_.load(std::memory_order_relaxed);
  Bucket* bucket = table.home(key);
  Slot* free = nullptr;
  for (std::size_t visited = 0; visited < table.buckets(); ++visited, bucket = table.next(bucket)) {
    // All four without a branch: how full a bucket is can't be predicted.
    Slot* const slots = bucket->slots;
    static_assert(kBucketSlots == 4);
    const auto has_key = [&](std::size_t i) {
      return slots[i].key.load(std::memory_order_relaxed) == key ? 1U : 0U;
    };
    const auto is_used = [&](std::size_t i) {
      return is_live(slots[i].bits.load(std::memory_order_relaxed));
    };
    if ((has_key(0) | has_key(1) | has_key(2) | has_key(3)) != 0) {  // without branches
      const std::size_t i =
          (has_key(1) != 0 ? 1U : 0U) | (has_key(2) != 0 ? 2U : 0U) | (has_key(3) != 0 ? 3U : 0U);
      return has_key(i) != 0 && is_used(i) ? Place{slots + i, true}
                                           : search(key);  // dead slots keep their keys
    }
    Slot* here = is_used(3) ? nullptr : slots + 3;
    here = is_used(2) ? here : slots + 2;
    here = is_used(1) ? here : slots + 1;
    here = is_used(0) ? here : slots;
    free = free == nullptr ? here : free;
    if (slots[3].bits.load(std::memory_order_relaxed) == 0) break;
  }
  return {free, false};
}

inline bool BlockShard::insert(Place place, BlockKey key, HolderRef holders) {
  bool evicted = false;
  if (used_ >= care_at_) evicted = prepare_insert(place, key);
  Slot& slot = *place.slot;
  if (slot.bits.load(std::memory_order_relaxed) == 0) ++used_;
  slot.key.store(key, std::memory_order_relaxed);
  slot.bits.store(holders.bits(), std::memory_order_release);
  set_blocks(blocks() + 1);
  return evicted;
}

template <typename Edit>
std::optional<std::size_t> BlockShard::edit_range(std::size_t from, std::size_t budget, Edit&& edit) {
  Table& table = *table_.load(std::memory_order_relaxed);
  const std::size_t slots = table.buckets() * kBucketSlots;
  const std::size_t end = from + budget < slots ? from + budget : slots;
  for (std::size_t i = from; i < end; ++i) {
    Slot& slot = table[i / kBucketSlots].slots[i % kBucketSlots];
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
