#include "epp/kv_index/engine_hash_shard.hpp"

#include <algorithm>
#include <utility>

namespace handoff::epp {

void EngineHashShard::open(ReadEpochs& epochs, std::size_t max_size, TableMemory memory) {
  epochs_ = &epochs;
  max_size_ = max_size;
  replace(new Table(std::move(memory)));
  first_buckets_ = table_.load()->buckets();
}

// Full at 7/8, 5/8 after growing, as the table of blocks: see there.
std::size_t EngineHashShard::buckets_for(std::size_t size) const {
  const std::size_t slots = size + size * 3 / 5 + 8;
  return std::max((slots + kBucketEntries - 1) / kBucketEntries, first_buckets_);
}

EngineHashShard::Found EngineHashShard::find(EngineKey engine) const {
  Found found;
  const Table& table = *table_.load(std::memory_order_relaxed);
  for (Bucket* bucket = table.home(engine);; bucket = table.next(bucket)) {
    for (const Entry& entry : bucket->entries) {
      if (is_free(entry)) return found;
      if (entry.engine != engine) continue;
      found.blocks[found.count++] = entry.block;
      if (found.count == kMaxBlocksPerHash) return found;
    }
  }
}

EngineHashShard::Added EngineHashShard::search_and_add(EngineKey engine, BlockKey block) {
  const Table& table = *table_.load(std::memory_order_relaxed);
  std::size_t same = 0;
  for (Bucket* bucket = table.home(engine);; bucket = table.next(bucket)) {
    for (Entry& entry : bucket->entries) {
      if (is_free(entry)) {
        if (same >= kMaxBlocksPerHash) return Added::too_many;
        set(entry, engine, block);
        set_size(size() + 1);
        return same >= kManyBlocksPerHash ? Added::added_to_many : Added::added;
      }
      if (entry.engine != engine) continue;
      if (entry.block == block) return Added::present;
      ++same;
    }
  }
}

bool EngineHashShard::erase(EngineKey engine, BlockKey block) {
  const Table& table = *table_.load(std::memory_order_relaxed);
  for (Bucket* bucket = table.home(engine);; bucket = table.next(bucket)) {
    for (std::size_t i = 0; i < kBucketEntries; ++i) {
      const Entry& entry = bucket->entries[i];
      if (is_free(entry)) return false;
      if (entry.engine != engine || entry.block != block) continue;
      fill_hole(bucket, i);
      set_size(size() - 1);
      if (table.buckets() > first_buckets_ && size() < table.buckets() * kBucketEntries / 4) resize();
      return true;
    }
  }
}

// A bucket with room promises that nobody was sent past it. So a hole is filled with the last entry of its
// bucket, and if that was full, with one from the buckets behind it that would rather be here; and so on with
// the hole which that one leaves.
void EngineHashShard::fill_hole(Bucket* bucket, std::size_t index) {
  const Table& table = *table_.load(std::memory_order_relaxed);
  const auto close = [](Bucket& from, std::size_t hole) {
    const std::size_t last = used_in(from) - 1;
    set(from.entries[hole], from.entries[last].engine, from.entries[last].block);
    set(from.entries[last], 0, 0);
  };
  bool may_have_sent_on = used_in(*bucket) == kBucketEntries;
  close(*bucket, index);
  for (Bucket* next = table.next(bucket); may_have_sent_on; next = table.next(next)) {
    const std::size_t used = used_in(*next);
    may_have_sent_on = used == kBucketEntries;
    for (std::size_t i = 0; i < used; ++i) {
      const Entry entry = next->entries[i];
      const Bucket* const home = table.home(entry.engine);
      if (table.distance(home, next) < table.distance(bucket, next)) continue;
      set(bucket->entries[kBucketEntries - 1], entry.engine, entry.block);
      close(*next, i);
      bucket = next;
      break;
    }
  }
}

EngineHashShard::Entry EngineHashShard::next_victim() {
  const Table& table = *table_.load(std::memory_order_relaxed);
  for (;;) {
    if (hand_ >= table.buckets() * kBucketEntries) hand_ = 0;
    const Entry& entry = table[hand_ / kBucketEntries].entries[hand_ % kBucketEntries];
    ++hand_;
    if (!is_free(entry)) return entry;
  }
}

void EngineHashShard::put(const Table& table, const Entry& entry) {
  for (Bucket* bucket = table.home(entry.engine);; bucket = table.next(bucket)) {
    const std::size_t used = used_in(*bucket);
    if (used == kBucketEntries) continue;
    set(bucket->entries[used], entry.engine, entry.block);
    return;
  }
}

void EngineHashShard::resize() {
  auto* const table = new Table(buckets_for(size()));
  for (const Bucket& bucket : *table_.load(std::memory_order_relaxed)) {
    for (const Entry& entry : bucket.entries) {
      if (!is_free(entry)) put(*table, entry);
    }
  }
  replace(table);
}

void EngineHashShard::replace(Table* table) {
  const std::size_t slots = table->buckets() * kBucketEntries;
  full_at_ = slots - slots / 8;
  room_ = std::min(full_at_, max_size_);
  table_bytes_.store(table->bytes(), std::memory_order_relaxed);
  Table* const old = table_.exchange(table, std::memory_order_acq_rel);
  if (old == nullptr) return;
  epochs_->retire(
      old, [](void* object) { delete static_cast<Table*>(object); }, old->bytes());
}

}  // namespace handoff::epp
