#include "epp/kv_index/engine_hash_shard.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace handoff::epp {

namespace {
constexpr std::size_t kSpillSlots = 64;
}  // namespace

void EngineHashShard::open(std::size_t first_slots) {
  first_slots_ = std::max<std::size_t>(first_slots, 16);
  adopt({}, first_slots_);
}

EngineHashShard::Found EngineHashShard::find(EngineKey engine) const {
  Found found;
  if (entries_ == nullptr) return found;
  const std::uint64_t wanted = order(engine);
  for (std::size_t at = home(engine); !is_free(entries_[at]) && order(entries_[at].engine) <= wanted; ++at) {
    if (entries_[at].engine != engine) continue;
    found.blocks[found.count++] = entries_[at].block;
    if (found.count == kMaxBlocksPerHash) break;
  }
  return found;
}

EngineHashShard::Added EngineHashShard::add(EngineKey engine, BlockKey block) {
  if (full()) resize(slots_for(size()));
  const std::uint64_t wanted = order(engine);
  std::size_t same = 0;
  std::size_t at = home(engine);
  for (; !is_free(entries_[at]) && order(entries_[at].engine) <= wanted; ++at) {
    if (entries_[at].engine != engine) continue;
    if (entries_[at].block == block) return Added::present;
    ++same;
  }
  if (same >= kMaxBlocksPerHash) return Added::too_many;
  // Mostly none or one has to move: too few for a call of memmove().
  Entry carried{engine, block};
  for (; !is_free(entries_[at]); ++at) std::swap(carried, entries_[at]);
  entries_[at] = carried;
  set_size(size() + 1);
  if (at + 2 >= capacity_) resize(slots_for(size()) + kSpillSlots);
  return Added::added;
}

bool EngineHashShard::erase(EngineKey engine, BlockKey block) {
  if (entries_ == nullptr) return false;
  const std::uint64_t wanted = order(engine);
  std::size_t at = home(engine);
  while (!is_free(entries_[at]) && order(entries_[at].engine) <= wanted) {
    if (entries_[at].engine == engine && entries_[at].block == block) break;
    ++at;
  }
  if (is_free(entries_[at]) || entries_[at].engine != engine || entries_[at].block != block) return false;
  // Followers move up until one is at home.
  for (std::size_t next = at + 1; !is_free(entries_[next]) && home(entries_[next].engine) < next;
       ++at, ++next) {
    entries_[at] = entries_[next];
  }
  entries_[at] = Entry{};
  set_size(size() - 1);
  if (slots_ > first_slots_ && slots_ > kSpillSlots && size() < slots_ / 4) resize(slots_for(size()));
  return true;
}

EngineHashShard::Entry EngineHashShard::next_victim() {
  for (;;) {
    if (hand_ >= capacity_) hand_ = 0;
    const Entry& entry = entries_[hand_++];
    if (!is_free(entry)) return entry;
  }
}

void EngineHashShard::resize(std::size_t slots) {
  std::vector<Entry> old;
  old.reserve(size());
  for (const Entry& entry : entries()) {
    if (!is_free(entry)) old.push_back(entry);
  }
  adopt(old, slots);
}

// In probing order already, so each entry goes to its home or right behind the one before it.
void EngineHashShard::adopt(const std::vector<Entry>& entries, std::size_t slots) {
  slots_ = slots;
  full_at_ = slots - slots / 5;
  std::size_t spill = kSpillSlots;
  while (!fill(entries, slots_ + spill)) spill *= 2;
  set_size(entries.size());
  data_.store(entries_, std::memory_order_relaxed);
  data_slots_.store(slots_, std::memory_order_relaxed);
  table_bytes_.store(memory_.bytes(), std::memory_order_relaxed);
}

bool EngineHashShard::fill(const std::vector<Entry>& entries, std::size_t capacity) {
  TableMemory memory(capacity * sizeof(Entry));
  auto* const table = static_cast<Entry*>(memory.data());
  for (std::size_t i = 0; i < capacity; ++i) new (table + i) Entry;
  std::size_t free = 0;
  for (const Entry& entry : entries) {
    const std::size_t at = std::max(free, home(entry.engine));
    if (at + 2 >= capacity) return false;
    table[at] = entry;
    free = at + 1;
  }
  memory_ = std::move(memory);
  entries_ = table;
  capacity_ = capacity;
  return true;
}

}  // namespace handoff::epp
