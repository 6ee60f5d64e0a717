#include "epp/kv_index/block_shard.hpp"

#include <algorithm>
#include <utility>

namespace handoff::epp {

namespace {
// Full at 7/8, 5/8 after growing: each block is copied three or four times while a table grows to its size.
// More often, and the copies cost more than all else.
constexpr std::size_t max_used(std::size_t slots) {
  return slots - slots / 8;
}
constexpr std::size_t slots_for(std::size_t live) {
  return live + live * 3 / 5 + 8;
}
}  // namespace

BlockShard::~BlockShard() {
  delete table_.load();
}

void BlockShard::open(ReadEpochs& epochs, HolderPool& pool, std::size_t max_blocks, TableMemory memory) {
  epochs_ = &epochs;
  pool_ = &pool;
  max_blocks_ = std::max<std::size_t>(max_blocks, 1);
  adopt(new Table(std::move(memory)));
  first_buckets_ = table_.load()->buckets();
}

std::uint64_t BlockShard::find_bits(BlockKey key, bool mark) const {
  const Table& table = *table_.load(std::memory_order_acquire);
  Bucket* bucket = table.home(key);
  for (std::size_t visited = 0; visited < table.buckets(); ++visited, bucket = table.next(bucket)) {
    for (Slot& slot : bucket->slots) {
      if (slot.key.load(std::memory_order_relaxed) != key) continue;
      std::uint64_t bits = slot.bits.load(std::memory_order_acquire);
      // A tombstone may have been given to another block between the two loads. The bits of that block were
      // stored after its key, so having seen them we now see the key as well.
      if (!is_live(bits) || slot.key.load(std::memory_order_relaxed) != key) continue;
      if (mark && (bits & kRecent) == 0) {
        // A writer may be faster; then there is nothing to protect.
        std::uint64_t expected = bits;
        slot.bits.compare_exchange_strong(expected, bits | kRecent, std::memory_order_relaxed);
      }
      return bits;
    }
    // Slots fill from the first to the last; nobody was ever sent past a bucket whose last slot is unused.
    if (bucket->slots[kBucketSlots - 1].bits.load(std::memory_order_relaxed) == 0) return 0;
  }
  return 0;
}

BlockShard::Slot* BlockShard::locate(BlockKey key) {
  const Table& table = *table_.load(std::memory_order_relaxed);
  Bucket* bucket = table.home(key);
  for (std::size_t visited = 0; visited < table.buckets(); ++visited, bucket = table.next(bucket)) {
    for (Slot& slot : bucket->slots) {
      if (slot.key.load(std::memory_order_relaxed) == key &&
          is_live(slot.bits.load(std::memory_order_relaxed))) {
        return &slot;
      }
    }
    if (bucket->slots[kBucketSlots - 1].bits.load(std::memory_order_relaxed) == 0) return nullptr;
  }
  return nullptr;
}

void BlockShard::replace(Slot& slot, HolderRef holders) {
  const HolderRef before = BlockShard::holders(slot);
  if (!holders.empty()) {
    slot.bits.store(holders.bits() | kRecent, std::memory_order_release);
  } else {
    const Table& table = *table_.load(std::memory_order_relaxed);
    const auto offset =
        reinterpret_cast<const std::byte*>(&slot) - reinterpret_cast<const std::byte*>(table.begin());
    const auto index = static_cast<std::size_t>(offset) / sizeof(Bucket);
    const Slot& last = table[index].slots[kBucketSlots - 1];
    // In a bucket that was never full the slot can be as new, unless later slots would then be filled before
    // it.
    const bool never_passed = last.bits.load(std::memory_order_relaxed) == 0;
    slot.bits.store(never_passed ? 0 : kTombstone, std::memory_order_release);
    if (never_passed) --used_;
    set_blocks(blocks() - 1);
    if (pressure_.load(std::memory_order_relaxed) && blocks() < max_blocks_ - max_blocks_ / 4) {
      pressure_.store(false, std::memory_order_relaxed);
    }
  }
  pool_->release(before);
}

void BlockShard::put(Table& table, BlockKey key, std::uint64_t bits) {
  for (Bucket* bucket = table.home(key);; bucket = table.next(bucket)) {
    for (Slot& slot : bucket->slots) {
      if (slot.bits.load(std::memory_order_relaxed) != 0) continue;
      slot.key.store(key, std::memory_order_relaxed);
      slot.bits.store(bits, std::memory_order_relaxed);
      return;
    }
  }
}

void BlockShard::rebuild(std::size_t buckets) {
  Table* old = table_.load(std::memory_order_relaxed);
  auto* table = new Table(buckets);
  const std::size_t slots = old->buckets() * kBucketSlots;
  std::size_t at = 0;
  for (const Bucket& bucket : *old) {
    for (const Slot& slot : bucket.slots) {
      std::uint64_t bits = slot.bits.load(std::memory_order_relaxed);
      // Blocks may move over the hand. Those that it passed last have not had the time to be matched since,
      // so they are spared once more.
      const std::size_t behind_hand = hand_ > at ? hand_ - at : hand_ + slots - at;
      if (behind_hand <= slots / 8) bits |= kRecent;
      if (is_live(bits)) put(*table, slot.key.load(std::memory_order_relaxed), bits);
      ++at;
    }
  }
  used_ = blocks();
  hand_ = hand_ * buckets / old->buckets();  // slots keep their order, so the round goes on
  ++generation_;
  adopt(table);
  epochs_->retire(
      old, [](void* object) { delete static_cast<Table*>(object); }, old->bytes());
}

void BlockShard::adopt(Table* table) {
  care_at_ = std::min(max_used(table->buckets() * kBucketSlots), max_blocks_ - max_blocks_ / 8);
  table_bytes_.store(table->bytes(), std::memory_order_relaxed);
  table_.store(table, std::memory_order_release);
}

void BlockShard::make_room() {
  const std::size_t slots = table_.load(std::memory_order_relaxed)->buckets() * kBucketSlots;
  if (used_ < max_used(slots)) return;
  // Grows, shrinks, or stays as it is and loses its tombstones, as the number of blocks asks for.
  const std::size_t want = (slots_for(blocks()) + kBucketSlots - 1) / kBucketSlots;
  rebuild(std::max(want, first_buckets_));
}

void BlockShard::expect(std::size_t buckets) {
  first_buckets_ = buckets;
  if (table_.load(std::memory_order_relaxed)->buckets() < buckets) rebuild(buckets);
}

void BlockShard::shrink_if_sparse() {
  const std::size_t buckets = table_.load(std::memory_order_relaxed)->buckets();
  if (buckets > first_buckets_ && blocks() < buckets * kBucketSlots / 4) {
    rebuild(std::max(slots_for(blocks()) / kBucketSlots, first_buckets_));
  }
}

void BlockShard::evict_one() {
  const Table& table = *table_.load(std::memory_order_relaxed);
  const std::size_t slots = table.buckets() * kBucketSlots;
  // The second round finds every mark wiped, apart from those that readers set meanwhile: no more mercy then.
  for (std::size_t visited = 0; visited < 3 * slots; ++visited) {
    Slot& slot = table[hand_ / kBucketSlots].slots[hand_ % kBucketSlots];
    hand_ = hand_ + 1 == slots ? 0 : hand_ + 1;
    const std::uint64_t bits = slot.bits.load(std::memory_order_relaxed);
    if (!is_live(bits)) continue;
    if ((bits & kRecent) != 0 && visited < 2 * slots) {
      slot.bits.fetch_and(~kRecent, std::memory_order_relaxed);
      continue;
    }
    replace(slot, HolderRef());
    return;
  }
}

BlockShard::Place BlockShard::search(BlockKey key) {
  const Table& table = *table_.load(std::memory_order_relaxed);
  Bucket* bucket = table.home(key);
  Slot* free = nullptr;
  for (std::size_t visited = 0; visited < table.buckets(); ++visited, bucket = table.next(bucket)) {
    for (Slot& slot : bucket->slots) {
      if (!is_live(slot.bits.load(std::memory_order_relaxed))) {
        if (free == nullptr) free = &slot;
      } else if (slot.key.load(std::memory_order_relaxed) == key) {
        return {&slot, true};
      }
    }
    if (bucket->slots[kBucketSlots - 1].bits.load(std::memory_order_relaxed) == 0) break;
  }
  return {free, false};
}

bool BlockShard::prepare_insert(Place& place, BlockKey key) {
  bool evicted = false;
  if (blocks() >= max_blocks_ - max_blocks_ / 8) pressure_.store(true, std::memory_order_relaxed);
  if (blocks() >= max_blocks_) {
    evict_one();
    evicted = true;
  }
  const bool is_full = used_ >= max_used(table_.load(std::memory_order_relaxed)->buckets() * kBucketSlots);
  if (is_full) make_room();
  if (is_full || evicted) place = place_of(key);
  return evicted;
}

}  // namespace handoff::epp
