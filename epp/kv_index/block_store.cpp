#include "epp/kv_index/block_store.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <utility>

namespace handoff::epp {

namespace {

constexpr std::size_t kScrubChunk = 1024;
constexpr std::size_t kFewHints = 1024;
// Of tables that were made for what was expected. Fuller, and too many keys lie in their second bucket.
constexpr double kExpectedLoad = 0.7;

std::uint64_t inverse(std::uint64_t odd) {
  std::uint64_t x = odd;  // right in three bits; each step doubles them
  for (int i = 0; i < 5; ++i) x *= 2 - odd * x;
  return x;
}

std::size_t shard_count(std::size_t wanted, std::size_t most) {
  return std::bit_ceil(std::clamp<std::size_t>(wanted, 1, most));
}

// As each has them: buckets of four entries on a line.
std::size_t bytes_for(std::size_t slots) {
  static_assert(sizeof(BlockShard::Bucket) == sizeof(EngineHashShard::Bucket));
  return (slots + BlockShard::kBucketSlots - 1) / BlockShard::kBucketSlots * sizeof(BlockShard::Bucket);
}

// Tables that grow by the same factor from different sizes don't all grow at the same time.
std::size_t first_bytes(std::size_t shard, std::size_t shards, std::size_t expected_blocks) {
  constexpr std::size_t kLeast = 64;
  constexpr double kGrowth = 1.4;
  if (expected_blocks == 0) {
    const double share = static_cast<double>(shard) / static_cast<double>(shards);
    return bytes_for(static_cast<std::size_t>(std::pow(kGrowth, share) * kLeast));
  }
  const double expected = static_cast<double>(expected_blocks) / static_cast<double>(shards);
  return bytes_for(std::max<std::size_t>(static_cast<std::size_t>(expected / kExpectedLoad), kLeast));
}

bool intersects(HolderRef holders, std::span<const std::uint64_t> bits) {
  if (const HolderSet* set = holders.set(); set != nullptr && set->is_bitset()) {
    const auto words = set->words();
    for (std::size_t w = 0; w < std::min(words.size(), bits.size()); ++w) {
      if ((words[w] & bits[w]) != 0) return true;
    }
    return false;
  }
  bool found = false;
  holders.for_each([&](Ordinal o) { found |= o / 64 < bits.size() && (bits[o / 64] >> (o % 64) & 1) != 0; });
  return found;
}

}  // namespace

HashScrambler::HashScrambler() {
  std::random_device entropy;
  const auto word = [&entropy] { return std::uint64_t{entropy()} << 32 | entropy(); };
  mask_ = word();
  first_ = word() | 1;
  second_ = word() | 1;
  first_inverse_ = inverse(first_);
  second_inverse_ = inverse(second_);
}

BlockStore::BlockStore(const Limits& limits)
    : limits_{shard_count(limits.shards, kMaxShards),
              limits.max_blocks,
              limits.max_engine_hashes,
              limits.max_holder_set_bytes,
              limits.keeps_engine_hashes,
              std::min(limits.expected_blocks, limits.max_blocks)},
      engine_hashes_per_shard_(std::max<std::size_t>(limits_.max_engine_hashes / limits_.shards, 1)),
      shard_mask_(limits_.shards - 1),
      pool_(epochs_, limits.max_holder_set_bytes),
      block_shards_(new BlockShard[limits_.shards]),
      engine_shards_(new EngineHashShard[limits_.shards]),
      reverse_shards_(limits.keeps_engine_hashes ? new EngineHashShard[limits_.shards] : nullptr),
      purged_at_(new std::atomic<std::uint64_t>[limits_.shards]()) {
  const auto slices = [this] {
    std::size_t total = 0;
    for (std::size_t i = 0; i < limits_.shards; ++i)
      total += first_bytes(i, limits_.shards, limits_.expected_blocks);
    return TableMemory::Slices(total);
  };
  auto for_blocks = slices();
  auto for_engines = slices();
  for (std::size_t i = 0; i < limits_.shards; ++i) {
    const std::size_t bytes = first_bytes(i, limits_.shards, limits_.expected_blocks);
    block_shards_[i].open(epochs_, pool_, limits_.max_blocks / limits_.shards, for_blocks.next(bytes));
    engine_shards_[i].open(epochs_, engine_hashes_per_shard_, for_engines.next(bytes));
    if (reverse_shards_ != nullptr)
      reverse_shards_[i].open(epochs_, engine_hashes_per_shard_, TableMemory(bytes));
  }
}

EngineHashShard::Found BlockStore::find_engine_hash(EngineKey key) const {
  EngineHashShard& shard = engine_shard(key);
  const std::lock_guard lock(shard.mutex());
  return shard.find(key);
}

std::optional<HolderRef> BlockStore::with(HolderRef holders, Ordinal ordinal, Transition& last) {
  if (holders == last.from && !last.to.empty() && pool_.try_retain(last.to)) return last.to;
  const auto result = pool_.with(holders, ordinal);
  if (result) last = {holders, *result};
  return result;
}

template <typename Shard, typename Prepare, typename Work>
void BlockStore::by_shard(Shard* shards, std::span<const std::uint64_t> keys, Prepare&& prepare,
                          Work&& work) const {
  constexpr std::uint8_t kEnd = 0xFF;
  static_assert(WriteBatch::kMost < kEnd);
  if (keys.size() == 1) {
    prepare(0);
    Shard& shard = shards[shard_of(keys[0])];
    const std::lock_guard lock(shard.mutex());
    return work(shard, 0);
  }
  // A list of keys for each shard.
  std::array<std::uint8_t, kMaxShards> first;
  std::array<std::uint8_t, WriteBatch::kMost> next;
  std::fill_n(first.begin(), limits_.shards, kEnd);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    next[i] = std::exchange(first[shard_of(keys[i])], static_cast<std::uint8_t>(i));
    prepare(i);
  }
  for (std::size_t number = 0; number < limits_.shards; ++number) {
    if (first[number] == kEnd) continue;
    Shard& shard = shards[number];
    const std::lock_guard lock(shard.mutex());
    for (std::uint8_t i = first[number]; i != kEnd; i = next[i]) work(shard, i);
  }
}

std::size_t BlockStore::add_holder(WriteBatch& batch, Ordinal ordinal, const Pin&) {
  const HolderRef alone = HolderRef::of(ordinal);
  Transition last;
  std::size_t added = 0;
  std::uint64_t evicted = 0;
  std::uint64_t existed = 0;
  const auto prepare = [&](std::size_t i) { BlockShard::prefetch_overflow(batch.block_homes[i]); };
  by_shard(block_shards_.get(), batch.block_keys(), prepare, [&](BlockShard& shard, std::size_t i) {
    const BlockKey key = batch.blocks[i];
    const BlockShard::Place place = shard.place_of(key);
    if (!place.found) {
      if (shard.insert(place, key, alone)) ++evicted;
      ++added;
      return;
    }
    BlockShard::Slot* const slot = place.slot;
    existed |= std::uint64_t{1} << i;
    const HolderRef holders = BlockShard::holders(*slot);
    if (holders.contains(ordinal)) return;
    if (const auto more = with(holders, ordinal, last)) {
      shard.replace(*slot, *more);
      ++added;
    } else {
      refused_holders_.fetch_add(1, std::memory_order_relaxed);
    }
  });
  batch.existed = existed;
  if (evicted != 0) {
    evicted_blocks_.fetch_add(evicted, std::memory_order_relaxed);
    orphan_hints_.fetch_add(evicted, std::memory_order_relaxed);
  }
  return added;
}

bool BlockStore::remove_holder(BlockKey key, Ordinal ordinal, const Pin&) {
  BlockShard& shard = block_shard(key);
  const std::lock_guard lock(shard.mutex());
  BlockShard::Slot* slot = shard.locate(key);
  if (slot == nullptr) return false;
  const HolderRef holders = BlockShard::holders(*slot);
  if (!holders.contains(ordinal)) return false;
  shard.replace(*slot, pool_.without(holders, ordinal));
  return true;
}

void BlockStore::link(WriteBatch& batch, Ordinal ordinal, const Pin& pin) {
  std::uint64_t refused = 0;
  std::uint64_t second_hashes = 0;
  const auto prepare = [&](std::size_t i) {
    engine_shard(batch.engines[i]).prefetch_overflow(batch.engines[i]);
  };
  by_shard(engine_shards_.get(), batch.engines, prepare, [&](EngineHashShard& shard, std::size_t i) {
    if (!shard.has_room()) make_room(shard, pin);
    auto result = shard.add(batch.engines[i], batch.blocks[i]);
    if (result == EngineHashShard::Added::added_to_many) {
      result = EngineHashShard::Added::added;
      if (has_too_many(shard, batch.engines[i], ordinal, pin)) {
        shard.erase(batch.engines[i], batch.blocks[i]);
        result = EngineHashShard::Added::too_many;
      }
    }
    if (result == EngineHashShard::Added::added) {
      second_hashes += batch.existed >> i & 1;  // perhaps: the block may have been without one
    } else if (result == EngineHashShard::Added::too_many) {
      refused |= std::uint64_t{1} << i;
    }
  });
  batch.refused = refused;
  if (second_hashes != 0) orphan_hints_.fetch_add(second_hashes, std::memory_order_relaxed);
  if (reverse_shards_ != nullptr) link_back(batch);
}

// More contents for one hash than any one rank may announce: what it takes is missing for the others.
bool BlockStore::has_too_many(const EngineHashShard& shard, EngineKey engine, Ordinal ordinal,
                              const Pin& pin) const {
  const auto found = shard.find(engine);
  std::size_t own = 0;
  for (std::size_t i = 0; i < found.count; ++i) own += find(found.blocks[i], pin).contains(ordinal) ? 1U : 0U;
  return own > EngineHashShard::kManyBlocksPerHash;
}

void BlockStore::link_back(const WriteBatch& batch) {
  const auto prepare = [](std::size_t) {};
  by_shard(reverse_shards_.get(), batch.block_keys(), prepare, [&](EngineHashShard& shard, std::size_t i) {
    while (shard.at_limit()) {
      const EngineHashShard::Entry victim = shard.next_victim();
      shard.erase(victim.engine, victim.block);
    }
    shard.grow();
    shard.add(batch.blocks[i], batch.engines[i]);
  });
}

void BlockStore::purge_reverse(EngineHashShard& shard, const Pin& pin) {
  shard.purge([&](BlockKey block, EngineKey) { return !find(block, pin).empty(); });
}

std::optional<std::uint64_t> BlockStore::engine_hash_of(BlockKey block) const {
  if (reverse_shards_ == nullptr) return std::nullopt;
  EngineHashShard::Found found;
  {
    EngineHashShard& shard = reverse_shards_[shard_of(block)];
    const std::lock_guard lock(shard.mutex());
    found = shard.find(block);
  }
  std::optional<EngineKey> one;
  for (std::size_t i = 0; i < found.count; ++i) {
    const auto back = find_engine_hash(found.blocks[i]);
    if (std::find(back.blocks, back.blocks + back.count, block) == back.blocks + back.count) continue;
    if (one) return std::nullopt;
    one = found.blocks[i];
  }
  if (!one) return std::nullopt;
  return scrambler_.restore(*one);
}

void BlockStore::unlink_if_gone(EngineKey engine, BlockKey block, const Pin& pin) {
  EngineHashShard& shard = engine_shard(engine);
  const std::lock_guard lock(shard.mutex());
  // Whoever stores the block again links it after that, so with our lock we either see it or run before its
  // link.
  if (!find(block, pin).empty()) return;
  shard.erase(engine, block);
  if (reverse_shards_ == nullptr) return;
  EngineHashShard& reverse = reverse_shards_[shard_of(block)];
  const std::lock_guard reverse_lock(reverse.mutex());
  reverse.erase(block, engine);
}

void BlockStore::make_room(EngineHashShard& shard, const Pin& pin) {
  const auto index = static_cast<std::size_t>(&shard - engine_shards_.get());
  const std::uint64_t hints =
      orphan_hints_.load(std::memory_order_relaxed) - purged_at_[index].load(std::memory_order_relaxed);
  // A purge looks up every entry's block; it should find a good part of them gone.
  if (hints / limits_.shards > shard.size() / 8) purge(shard, pin);
  while (shard.at_limit()) {
    const EngineHashShard::Entry victim = shard.next_victim();
    shard.erase(victim.engine, victim.block);
    BlockShard& blocks = block_shard(victim.block);
    const std::lock_guard lock(blocks.mutex());
    if (BlockShard::Slot* slot = blocks.locate(victim.block); slot != nullptr) {
      blocks.replace(*slot, HolderRef());
      evicted_blocks_.fetch_add(1, std::memory_order_relaxed);
      orphan_hints_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  shard.grow();
}

void BlockStore::purge(EngineHashShard& shard, const Pin& pin) {
  const auto index = static_cast<std::size_t>(&shard - engine_shards_.get());
  purged_at_[index].store(orphan_hints_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  shard.purge([&](EngineKey, BlockKey block) { return !find(block, pin).empty(); });
}

void BlockStore::expect(std::size_t blocks) {
  for (std::size_t i = 0; i < limits_.shards; ++i) {
    const std::size_t buckets =
        first_bytes(i, limits_.shards, std::min(blocks, limits_.max_blocks)) / sizeof(BlockShard::Bucket);
    {
      const std::lock_guard lock(engine_shards_[i].mutex());
      engine_shards_[i].expect(buckets);
    }
    if (reverse_shards_ != nullptr) {
      const std::lock_guard lock(reverse_shards_[i].mutex());
      reverse_shards_[i].expect(buckets);
    }
    const std::lock_guard lock(block_shards_[i].mutex());
    block_shards_[i].expect(buckets);
  }
}

void BlockStore::scrub(std::size_t budget, bool wait,
                       const std::function<std::vector<std::uint64_t>()>& begin,
                       const std::function<void()>& done) {
  std::unique_lock lock(scrub_mutex_, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;
  }
  const Pin pin = epochs_.pin();
  while (budget > 0) {
    if (!scrubbing_) {
      dead_ = begin();
      if (dead_.empty()) return;
      scrubbing_ = true;
      scrub_shard_ = 0;
      scrub_position_ = 0;
    }
    while (scrub_shard_ < limits_.shards && budget > 0) {
      if (!scrub_shard(budget, pin)) continue;
      ++scrub_shard_;
      scrub_position_ = 0;
    }
    if (scrub_shard_ < limits_.shards) return;
    scrubbing_ = false;
    done();
  }
}

bool BlockStore::scrub_shard(std::size_t& budget, const Pin&) {
  BlockShard& shard = block_shards_[scrub_shard_];
  const std::lock_guard lock(shard.mutex());
  if (scrub_position_ != 0 && shard.generation() != scrub_generation_)
    scrub_position_ = 0;  // everything moved
  scrub_generation_ = shard.generation();
  const std::size_t before = shard.blocks();
  const std::size_t chunk = std::min(budget, kScrubChunk);
  Transition last;
  const auto next =
      shard.edit_range(scrub_position_, chunk, [&](HolderRef holders) { return scrubbed(holders, last); });
  orphan_hints_.fetch_add(before - shard.blocks(), std::memory_order_relaxed);
  budget -= chunk;
  scrub_position_ = next.value_or(0);
  return !next.has_value();
}

HolderRef BlockStore::scrubbed(HolderRef holders, Transition& last) {
  if (holders == last.from && !last.to.empty() && pool_.try_retain(last.to)) return last.to;
  if (!intersects(holders, dead_)) return holders;
  last = {holders, pool_.without(holders, dead_)};
  return last.to;
}

void BlockStore::tidy() {
  const Pin pin = epochs_.pin();
  const std::uint64_t hints = orphan_hints_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < limits_.shards; ++i) {
    {
      const std::lock_guard lock(block_shards_[i].mutex());
      block_shards_[i].shrink_if_sparse();
    }
    const std::uint64_t fresh = hints - purged_at_[i].load(std::memory_order_relaxed);
    if (fresh < kFewHints || fresh / limits_.shards < engine_shards_[i].size() / 8) continue;
    {
      const std::lock_guard lock(engine_shards_[i].mutex());
      purge(engine_shards_[i], pin);
    }
    if (reverse_shards_ == nullptr) continue;
    const std::lock_guard lock(reverse_shards_[i].mutex());
    purge_reverse(reverse_shards_[i], pin);
  }
}

BlockStore::Sizes BlockStore::sizes() const {
  Sizes sizes;
  for (std::size_t i = 0; i < limits_.shards; ++i) {
    sizes.blocks += block_shards_[i].blocks();
    sizes.engine_hashes += engine_shards_[i].size();
    sizes.table_bytes += block_shards_[i].table_bytes() + engine_shards_[i].table_bytes();
    if (reverse_shards_ != nullptr) sizes.table_bytes += reverse_shards_[i].table_bytes();
  }
  sizes.holder_sets = pool_.sets();
  sizes.holder_set_bytes = pool_.bytes();
  sizes.evicted_blocks = evicted_blocks_.load(std::memory_order_relaxed);
  sizes.refused_holders = refused_holders_.load(std::memory_order_relaxed);
  return sizes;
}

}  // namespace handoff::epp
