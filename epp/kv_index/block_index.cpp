#include "epp/kv_index/block_index.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_store.hpp"
#include "epp/kv_index/prefix_walk.hpp"
#include "epp/kv_index/rank_registry.hpp"

namespace handoff::epp {

namespace {

constexpr std::size_t kAhead = 16;          // blocks whose memory a match asks for before it needs them
constexpr std::int64_t kWindowsPerTtl = 4;  // a predicted block lives its TTL and up to one window more
constexpr std::size_t kScrubPerWrite = 64;  // table slots; plus some for each block written
constexpr std::size_t kScrubPerBlock = 8;
constexpr std::size_t kScrubPerMaintain = std::size_t{1} << 18;

bool has_duplicates(std::span<const EngineKey> keys, std::vector<std::uint64_t>& seen) {
  if (keys.empty()) return false;
  // A small table of what was seen; the first key doubles as the mark of a free place.
  const std::size_t mask = std::bit_ceil(keys.size() * 2) - 1;
  seen.assign(mask + 1, keys[0]);
  for (const EngineKey key : keys.subspan(1)) {
    if (key == keys[0]) return true;
    std::size_t at = key & mask;
    for (; seen[at] != keys[0]; at = (at + 1) & mask) {
      if (seen[at] == key) return true;
    }
    seen[at] = key;
  }
  return false;
}

// Says cheaply of a few keys that no two are the same, mostly: there are false alarms.
class DuplicateAlarm {
 public:
  // True: the key may have been there before.
  bool add(EngineKey key) {
    const std::uint64_t bit = std::uint64_t{1} << (key >> kWordsLog2 & 63);
    std::uint64_t& word = words_[key % words_.size()];
    const bool rings = (word & bit) != 0;
    word |= bit;
    return rings;
  }
  void reset(std::span<const EngineKey> added) {
    for (const EngineKey key : added) words_[key % words_.size()] = 0;
  }

 private:
  static constexpr unsigned kWordsLog2 = 9;
  std::array<std::uint64_t, std::size_t{1} << kWordsLog2> words_{};
};

// Reused by each writing thread, so that events allocate nothing.
struct WriteScratch {
  WriteBatch batch;
  std::vector<EngineKey> engines;
  std::vector<std::uint64_t> seen;
  DuplicateAlarm alarm;

  static WriteScratch& get() {
    thread_local WriteScratch scratch;
    return scratch;
  }
};

}  // namespace

class BlockIndex::Impl {
 public:
  explicit Impl(const BlockIndexOptions& options)
      : options_(options),
        store_({options.shards, options.max_blocks, options.max_engine_hashes, options.max_holder_set_bytes,
                options.keeps_engine_hashes, options.expected_blocks}),
        ranks_(store_.epochs()) {}

  RankRegistry& ranks() { return ranks_; }
  void expect(std::size_t blocks) { store_.expect(blocks); }

  std::optional<RankSlot> add_rank(WorkerRank rank) {
    auto slot = ranks_.add(rank);
    if (!slot && ranks_.has_dead()) {
      scrub_all();
      slot = ranks_.add(rank);
    }
    return slot;
  }

  bool clear(WorkerRank rank, bool remove) {
    const auto slot = ranks_.slot_of(rank);
    if (!slot) return false;
    const std::lock_guard lock(ranks_.write_mutex(*slot));
    if (!ranks_.ordinals_of(*slot, rank)) return false;
    if (remove) {
      ranks_.remove(*slot);
    } else {
      ranks_.clear(*slot);
    }
    count(counters_.clears);
    return true;
  }

  StoreOutcome apply_stored(WorkerRank rank, Tier tier, const StoredBlocks& blocks);
  std::size_t apply_copied(WorkerRank rank, Tier tier, std::span<const std::uint64_t> engine_hashes);
  std::size_t apply_removed(WorkerRank rank, Tier tier, std::span<const std::uint64_t> engine_hashes);
  bool predict(WorkerRank rank, std::span<const std::uint64_t> sequence_hashes, SteadyTime now);
  void maintain(SteadyTime now);
  void match_prefix(std::span<const std::uint64_t> hashes, SteadyTime now, OverlapScores& out) const;
  bool engine_hashes(std::span<const std::uint64_t> sequence_hashes, std::vector<std::uint64_t>& out) const {
    out.clear();
    for (const std::uint64_t hash : sequence_hashes) {
      const auto engine = store_.engine_hash_of(store_.block_key(hash));
      if (!engine) return false;
      out.push_back(*engine);
    }
    return true;
  }
  BlockIndexStats stats() const;

 private:
  using Counter = std::atomic<std::uint64_t>;
  struct Counters {
    Counter stores{0}, duplicate_stores{0}, unknown_parents{0}, malformed_stores{0}, conflicting_hashes{0},
        removals{0}, unknown_removals{0}, predicted_blocks{0}, clears{0}, refused{0};
  };

  static void count(Counter& counter, std::uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }

  void scrub(std::size_t budget, bool wait) {
    if (!ranks_.has_dead()) return;
    store_.scrub(
        budget, wait, [this] { return ranks_.begin_scrub(); }, [this] { ranks_.scrubbed(); });
  }
  void scrub_all() { scrub(std::size_t{1} << 62, true); }

  Ordinal ordinal_for(RankSlot slot, const RankOrdinals& ordinals, Tier tier) {
    Ordinal ordinal = ordinals.tiers[static_cast<std::size_t>(tier)];
    if (ordinal == kNoOrdinal) ordinal = ranks_.tier_ordinal(slot, tier);
    if (ordinal != kNoOrdinal || !ranks_.has_dead()) return ordinal;
    scrub_all();
    return ranks_.tier_ordinal(slot, tier);
  }

  // The keys of the event's engine hashes, the parent's in front; asks for the memory of the first ones.
  // False: the event is malformed.
  bool take_engines(const StoredBlocks& blocks, WriteScratch& scratch, const ReadEpochs::Pin& pin) const;
  // The next blocks behind `parent`, which moves on to the last of them. Asks for their
  // memory. False: no block behind these can be stored.
  bool fill_batch(std::span<const std::uint64_t> locals, std::span<const EngineKey> engines,
                  std::optional<std::uint64_t>& parent, WriteBatch& batch, const ReadEpochs::Pin& pin) const;

  static bool holds(const RankOrdinals& ordinals, HolderRef holders) {
    bool held = false;
    ordinals.for_each_stored([&](Ordinal ordinal) { held |= holders.contains(ordinal); });
    return held;
  }

  // The one block that this rank means by the hash; nullopt when it holds none, or several (is_ambiguous).
  std::optional<BlockKey> block_of(EngineKey engine, const RankOrdinals& ordinals, const ReadEpochs::Pin& pin,
                                   bool* is_ambiguous = nullptr) const {
    const auto found = store_.find_engine_hash(engine);
    std::optional<BlockKey> block;
    for (std::size_t i = 0; i < found.count; ++i) {
      if (!holds(ordinals, store_.find(found.blocks[i], pin))) continue;
      if (block) {
        if (is_ambiguous != nullptr) *is_ambiguous = true;
        return std::nullopt;
      }
      block = found.blocks[i];
    }
    return block;
  }

  const BlockIndexOptions options_;
  BlockStore store_;
  RankRegistry ranks_;
  Counters counters_;
};

bool BlockIndex::Impl::fill_batch(std::span<const std::uint64_t> locals, std::span<const EngineKey> engines,
                                  std::optional<std::uint64_t>& parent, WriteBatch& batch,
                                  const ReadEpochs::Pin& pin) const {
  constexpr std::size_t kStep = 8;  // hashes of the chain, while the memory of those before is asked for
  std::array<std::uint64_t, kStep> sequence;
  const std::size_t blocks = std::min(WriteBatch::kMost, locals.size());
  batch.clear();
  bool goes_on = true;
  while (goes_on && batch.size < blocks) {
    const std::size_t step = std::min(kStep, blocks - batch.size);
    chain_hashes(parent, locals.subspan(batch.size, step), sequence.data());
    parent = sequence[step - 1];
    for (std::size_t i = 0; goes_on && i < step; ++i) {
      const BlockKey key = store_.block_key(sequence[i]);
      goes_on = key != 0;  // marks a free place; one hash in 2^64 is out of luck
      if (goes_on) store_.put(batch, key, pin);
    }
  }
  batch.engines = engines.first(batch.size);
  return goes_on;
}

bool BlockIndex::Impl::take_engines(const StoredBlocks& blocks, WriteScratch& scratch,
                                    const ReadEpochs::Pin& pin) const {
  if (blocks.engine_hashes.size() != blocks.local_hashes.size()) return false;
  const std::size_t parents = blocks.parent_engine_hash ? 1 : 0;
  scratch.engines.resize(parents + blocks.engine_hashes.size());
  std::size_t at = 0;
  bool rings = false;
  const auto take = [&](std::uint64_t hash) {
    const EngineKey engine = store_.engine_key(hash);
    scratch.engines[at++] = engine;
    rings |= scratch.alarm.add(engine);
    if (at <= WriteBatch::kMost) store_.prefetch_engine(engine, pin);
  };
  if (parents != 0) take(*blocks.parent_engine_hash);
  for (const std::uint64_t hash : blocks.engine_hashes) take(hash);
  scratch.alarm.reset(scratch.engines);
  return !rings || !has_duplicates(scratch.engines, scratch.seen);
}

StoreOutcome BlockIndex::Impl::apply_stored(WorkerRank rank, Tier tier, const StoredBlocks& blocks) {
  count(counters_.stores);
  scrub(kScrubPerWrite + kScrubPerBlock * blocks.engine_hashes.size(), false);
  const auto slot = ranks_.slot_of(rank);
  if (!slot) return StoreOutcome::unknown_rank;
  const std::lock_guard lock(ranks_.write_mutex(*slot));
  const auto ordinals = ranks_.ordinals_of(*slot, rank);
  if (!ordinals) return StoreOutcome::unknown_rank;

  const Ordinal ordinal = ordinal_for(*slot, *ordinals, tier);
  if (ordinal == kNoOrdinal) {
    count(counters_.refused, blocks.engine_hashes.size());
    return StoreOutcome::already_stored;
  }
  const ReadEpochs::Pin pin = store_.epochs().pin();
  WriteScratch& scratch = WriteScratch::get();
  if (!take_engines(blocks, scratch, pin)) {
    count(counters_.malformed_stores);
    return StoreOutcome::malformed;
  }
  std::span<const EngineKey> engines = scratch.engines;
  std::optional<std::uint64_t> parent;
  if (blocks.parent_engine_hash) {
    bool is_ambiguous = false;
    const auto block = block_of(engines.front(), *ordinals, pin, &is_ambiguous);
    if (!block) {
      count(counters_.unknown_parents);
      return is_ambiguous ? StoreOutcome::ambiguous_parent : StoreOutcome::unknown_parent;
    }
    parent = store_.sequence_hash(*block);
    engines = engines.subspan(1);
  }
  WriteBatch& batch = scratch.batch;
  std::size_t added = 0;
  std::size_t refused = 0;
  bool goes_on = true;
  for (std::size_t begin = 0; goes_on && begin < engines.size(); begin += WriteBatch::kMost) {
    goes_on = fill_batch(blocks.local_hashes.subspan(begin), engines.subspan(begin), parent, batch, pin);
    added += store_.add_holder(batch, ordinal, pin);
    const auto ahead = engines.subspan(std::min(engines.size(), begin + WriteBatch::kMost));
    for (const EngineKey engine : ahead.first(std::min(ahead.size(), WriteBatch::kMost)))
      store_.prefetch_engine(engine, pin);
    store_.link(batch, ordinal, pin);
    // Without its link a removal would not find a block, so nobody may hold it on our account.
    for (std::uint64_t rest = batch.refused; rest != 0; rest &= rest - 1) {
      store_.remove_holder(batch.blocks[static_cast<std::size_t>(std::countr_zero(rest))], ordinal, pin);
      ++refused;
    }
  }
  if (refused != 0) {
    count(counters_.conflicting_hashes, refused);
    return StoreOutcome::conflicting_hash;
  }
  if (added != 0) return StoreOutcome::applied;
  count(counters_.duplicate_stores);
  return StoreOutcome::already_stored;
}

std::size_t BlockIndex::Impl::apply_copied(WorkerRank rank, Tier tier,
                                           std::span<const std::uint64_t> engine_hashes) {
  const auto slot = ranks_.slot_of(rank);
  if (!slot) return 0;
  const std::lock_guard lock(ranks_.write_mutex(*slot));
  const auto ordinals = ranks_.ordinals_of(*slot, rank);
  if (!ordinals) return 0;
  const Ordinal ordinal = ordinal_for(*slot, *ordinals, tier);
  if (ordinal == kNoOrdinal) return 0;
  const ReadEpochs::Pin pin = store_.epochs().pin();
  WriteBatch& batch = WriteScratch::get().batch;
  std::size_t known = 0;
  for (const std::uint64_t hash : engine_hashes) {
    const EngineKey engine = store_.engine_key(hash);
    auto block = block_of(engine, *ordinals, pin);
    if (!block) {
      // A block may leave the device before its copy is announced. What the hash means, another rank may
      // still tell.
      const auto found = store_.find_engine_hash(engine);
      if (found.count == 1 && !store_.find(found.blocks[0], pin).empty()) block = found.blocks[0];
    }
    if (!block) continue;
    batch.clear();
    store_.put(batch, *block, pin);
    store_.add_holder(batch, ordinal, pin);
    ++known;
  }
  return known;
}

std::size_t BlockIndex::Impl::apply_removed(WorkerRank rank, Tier tier,
                                            std::span<const std::uint64_t> engine_hashes) {
  scrub(kScrubPerWrite + kScrubPerBlock * engine_hashes.size(), false);
  const auto slot = ranks_.slot_of(rank);
  if (!slot) return 0;
  const std::lock_guard lock(ranks_.write_mutex(*slot));
  const auto ordinals = ranks_.ordinals_of(*slot, rank);
  if (!ordinals) return 0;
  const Ordinal ordinal = ordinals->tiers[static_cast<std::size_t>(tier)];
  const ReadEpochs::Pin pin = store_.epochs().pin();
  std::size_t removed = 0;
  for (const std::uint64_t hash : engine_hashes) {
    if (ordinal == kNoOrdinal) break;
    const EngineKey engine = store_.engine_key(hash);
    const auto found = store_.find_engine_hash(engine);
    bool held = false;
    for (std::size_t i = 0; i < found.count; ++i) {
      if (!store_.remove_holder(found.blocks[i], ordinal, pin)) continue;
      held = true;
      if (store_.find(found.blocks[i], pin).empty()) store_.unlink_if_gone(engine, found.blocks[i], pin);
    }
    removed += held ? 1U : 0U;
  }
  count(counters_.removals, removed);
  count(counters_.unknown_removals, engine_hashes.size() - removed);
  return removed;
}

bool BlockIndex::Impl::predict(WorkerRank rank, std::span<const std::uint64_t> sequence_hashes,
                               SteadyTime now) {
  if (options_.predicted_ttl <= std::chrono::milliseconds::zero()) return false;
  scrub(kScrubPerWrite + kScrubPerBlock * sequence_hashes.size(), false);
  const auto slot = ranks_.slot_of(rank);
  if (!slot) return false;
  const std::lock_guard lock(ranks_.write_mutex(*slot));
  if (!ranks_.ordinals_of(*slot, rank)) return false;
  ranks_.drop_predicted_before(*slot, now);

  const auto width = std::max<SteadyTime::duration>(
      SteadyTime::duration(1), SteadyTime::duration(options_.predicted_ttl) / kWindowsPerTtl);
  const std::int64_t window = now.time_since_epoch() / width;
  const SteadyTime expires = SteadyTime((window + 1) * width) + options_.predicted_ttl;
  Ordinal ordinal = ranks_.predicted_ordinal(*slot, window, expires);
  if (ordinal == kNoOrdinal && ranks_.has_dead()) {
    scrub_all();
    ordinal = ranks_.predicted_ordinal(*slot, window, expires);
  }
  if (ordinal == kNoOrdinal) {
    count(counters_.refused, sequence_hashes.size());
    return false;
  }
  WriteBatch& batch = WriteScratch::get().batch;
  const ReadEpochs::Pin pin = store_.epochs().pin();
  std::size_t predicted = 0;
  for (std::size_t begin = 0; begin < sequence_hashes.size(); begin += WriteBatch::kMost) {
    const std::size_t blocks = std::min(WriteBatch::kMost, sequence_hashes.size() - begin);
    batch.clear();
    for (const std::uint64_t hash : sequence_hashes.subspan(begin, blocks)) {
      const BlockKey key = store_.block_key(hash);
      if (key == 0) continue;
      store_.put(batch, key, pin);
    }
    store_.add_holder(batch, ordinal, pin);
    predicted += batch.size;
  }
  count(counters_.predicted_blocks, predicted);
  return true;
}

void BlockIndex::Impl::maintain(SteadyTime now) {
  for (const RankSlot slot : ranks_.slots_with_expired(now)) {
    const std::lock_guard lock(ranks_.write_mutex(slot));
    ranks_.drop_predicted_before(slot, now);
  }
  scrub(kScrubPerMaintain, false);
  store_.tidy();
  store_.epochs().reclaim();
}

void BlockIndex::Impl::match_prefix(std::span<const std::uint64_t> hashes, SteadyTime now,
                                    OverlapScores& out) const {
  const ReadEpochs::Pin pin = store_.epochs().pin();
  out.requested_blocks_ = static_cast<std::uint32_t>(hashes.size());
  PrefixWalk walk(ranks_.snapshot(), now, out);
  std::array<BlockKey, 2 * kAhead> keys;  // a ring: those asked for and not yet looked at
  static_assert(std::has_single_bit(2 * kAhead));
  const auto ask_for = [&](std::size_t i) {
    const BlockKey key = store_.block_key(hashes[i]);
    keys[i % keys.size()] = key;
    store_.prefetch(key, pin);
  };
  for (std::size_t i = 0; i < std::min(kAhead, hashes.size()); ++i) ask_for(i);

  HolderRef before;
  std::uint32_t block = 0;
  for (; block < hashes.size(); ++block) {
    if (block + kAhead < hashes.size()) ask_for(block + kAhead);
    const HolderRef holders = store_.find_and_mark(keys[block % keys.size()], pin);
    if (holders.empty()) break;
    if (block == 0) {
      walk.start(holders);
    } else if (holders != before) {
      walk.advance(holders, block);
    }
    if (!walk.anyone_left()) break;
    before = holders;
  }
  walk.finish(block);
}

BlockIndexStats BlockIndex::Impl::stats() const {
  const BlockStore::Sizes sizes = store_.sizes();
  const auto read = [](const Counter& counter) { return counter.load(std::memory_order_relaxed); };
  BlockIndexStats stats;
  stats.blocks = sizes.blocks;
  stats.engine_hashes = sizes.engine_hashes;
  stats.holder_sets = sizes.holder_sets;
  stats.holder_set_bytes = sizes.holder_set_bytes;
  stats.table_bytes = sizes.table_bytes;
  stats.retired_bytes = store_.epochs().retired_bytes();
  stats.ranks = ranks_.ranks();
  stats.ordinals = ranks_.ordinals_in_use();
  stats.evicted_blocks = sizes.evicted_blocks;
  stats.refused_holders = sizes.refused_holders + read(counters_.refused);
  stats.stores = read(counters_.stores);
  stats.duplicate_stores = read(counters_.duplicate_stores);
  stats.unknown_parents = read(counters_.unknown_parents);
  stats.malformed_stores = read(counters_.malformed_stores);
  stats.conflicting_hashes = read(counters_.conflicting_hashes);
  stats.removals = read(counters_.removals);
  stats.unknown_removals = read(counters_.unknown_removals);
  stats.predicted_blocks = read(counters_.predicted_blocks);
  stats.clears = read(counters_.clears);
  return stats;
}

BlockIndex::BlockIndex(const BlockIndexOptions& options) : impl_(std::make_unique<Impl>(options)) {}
BlockIndex::~BlockIndex() = default;

std::optional<RankSlot> BlockIndex::add_rank(WorkerRank rank) {
  return impl_->add_rank(rank);
}
std::optional<RankSlot> BlockIndex::slot_of(WorkerRank rank) const {
  return impl_->ranks().slot_of(rank);
}
bool BlockIndex::remove_rank(WorkerRank rank) {
  return impl_->clear(rank, true);
}
bool BlockIndex::clear_rank(WorkerRank rank) {
  return impl_->clear(rank, false);
}

std::size_t BlockIndex::remove_worker(std::uint64_t worker) {
  std::size_t removed = 0;
  for (const WorkerRank rank : impl_->ranks().ranks_of(worker)) removed += remove_rank(rank) ? 1U : 0U;
  return removed;
}

StoreOutcome BlockIndex::apply_stored(WorkerRank rank, Tier tier, const StoredBlocks& blocks) {
  return impl_->apply_stored(rank, tier, blocks);
}

std::size_t BlockIndex::apply_copied(WorkerRank rank, Tier tier,
                                     std::span<const std::uint64_t> engine_hashes) {
  return impl_->apply_copied(rank, tier, engine_hashes);
}

std::size_t BlockIndex::apply_removed(WorkerRank rank, Tier tier,
                                      std::span<const std::uint64_t> engine_hashes) {
  return impl_->apply_removed(rank, tier, engine_hashes);
}

bool BlockIndex::predict(WorkerRank rank, std::span<const std::uint64_t> sequence_hashes, SteadyTime now) {
  return impl_->predict(rank, sequence_hashes, now);
}

void BlockIndex::maintain(SteadyTime now) {
  impl_->maintain(now);
}

void BlockIndex::match_prefix(std::span<const std::uint64_t> sequence_hashes, SteadyTime now,
                              OverlapScores& out) const {
  impl_->match_prefix(sequence_hashes, now, out);
}

bool BlockIndex::engine_hashes(std::span<const std::uint64_t> sequence_hashes,
                               std::vector<std::uint64_t>& out) const {
  return impl_->engine_hashes(sequence_hashes, out);
}

void BlockIndex::expect(std::size_t blocks) {
  impl_->expect(blocks);
}
BlockIndexStats BlockIndex::stats() const {
  return impl_->stats();
}

}  // namespace handoff::epp
