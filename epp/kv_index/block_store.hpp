#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "epp/kv_index/block_shard.hpp"
#include "epp/kv_index/engine_hash_shard.hpp"
#include "epp/kv_index/holder_set.hpp"
#include "epp/kv_index/read_epochs.hpp"

namespace handoff::epp {

// A secret one-to-one map of hashes, so that keys stand for the hashes themselves and can be turned back.
class HashScrambler {
 public:
  HashScrambler();

  std::uint64_t scramble(std::uint64_t hash) const {
    hash = (hash ^ mask_) * first_;
    hash = (hash ^ hash >> 32) * second_;
    return hash ^ hash >> 32;
  }
  std::uint64_t restore(std::uint64_t key) const {
    key = (key ^ key >> 32) * second_inverse_;
    return (key ^ key >> 32) * first_inverse_ ^ mask_;
  }

 private:
  std::uint64_t mask_;
  std::uint64_t first_;
  std::uint64_t second_;
  std::uint64_t first_inverse_;
  std::uint64_t second_inverse_;
};

// Blocks that are written in one go: so many that a lock is taken for several of them, and that the memory of
// all is on its way while they are hashed; so few that it is still in the nearest cache when they are
// written.
struct WriteBatch {
  static constexpr std::size_t kMost = 64;

  std::size_t size = 0;
  std::array<BlockKey, kMost> blocks;
  std::span<const EngineKey> engines;  // of the blocks, for link(); else empty
  // Where they lie, if that has not changed since: what was asked for.
  std::array<const BlockShard::Bucket*, kMost> block_homes;
  std::uint64_t existed = 0;  // bit i: some rank held block i before
  std::uint64_t refused = 0;  // bit i: block i got no link

  void clear() {
    size = 0;
    engines = {};
  }
  std::span<const BlockKey> block_keys() const { return std::span(blocks).first(size); }
};

// The tables of a BlockIndex: block -> holders, and engine hash -> block. Knows ordinals, not ranks. Owned by
// the index.
//
// Threads: any. Lock order: scrub, engine shard, reverse shard, block shard, holder pool, epochs; never two
// shards of a kind. Methods that take a Pin walk without locks.
class BlockStore {
 public:
  struct Limits {
    std::size_t shards;
    std::size_t max_blocks;
    std::size_t max_engine_hashes;
    std::size_t max_holder_set_bytes;
    bool keeps_engine_hashes;
    std::size_t expected_blocks;  // to begin with
  };
  using Pin = ReadEpochs::Pin;

  explicit BlockStore(const Limits& limits);

  ReadEpochs& epochs() { return epochs_; }
  const ReadEpochs& epochs() const { return epochs_; }

  BlockKey block_key(std::uint64_t sequence_hash) const { return scrambler_.scramble(sequence_hash); }
  std::uint64_t sequence_hash(BlockKey key) const { return scrambler_.restore(key); }
  EngineKey engine_key(std::uint64_t engine_hash) const { return scrambler_.scramble(engine_hash); }

  // --- reading ---
  void prefetch(BlockKey key, const Pin&) const { block_shard(key).prefetch(key); }
  HolderRef find(BlockKey key, const Pin&) const { return block_shard(key).find(key); }
  HolderRef find_and_mark(BlockKey key, const Pin&) const { return block_shard(key).find_and_mark(key); }
  EngineHashShard::Found find_engine_hash(EngineKey key) const;
  // The one engine hash that leads to the block; nullopt when there is none, or several.
  std::optional<std::uint64_t> engine_hash_of(BlockKey block) const;

  // --- writing ---
  // Adds a block to a batch, and asks for its memory, under the pin under which the batch is written.
  void prefetch_engine(EngineKey engine, const Pin&) const { engine_shard(engine).prefetch(engine); }
  void put(WriteBatch& batch, BlockKey block, const Pin&) const {
    batch.blocks[batch.size] = block;
    batch.block_homes[batch.size++] = block_shard(block).prefetch(block);
  }
  // Adds the ordinal to all these blocks; how many did not have it. Sets `existed`.
  std::size_t add_holder(WriteBatch& batch, Ordinal ordinal, const Pin&);
  // False when the block was not held by it.
  bool remove_holder(BlockKey key, Ordinal ordinal, const Pin&);
  // After add_holder(). Remembers engine hash -> block for each pair, apart from those at the limit of blocks
  // per hash: they are `refused`.
  void link(WriteBatch& batch, Ordinal ordinal, const Pin& pin);
  // Forgets engine hash -> block, unless somebody holds the block again.
  void unlink_if_gone(EngineKey engine, BlockKey block, const Pin&);

  // --- upkeep ---
  // Room for so many blocks from now on, so that no table has to grow. One caller at a time.
  void expect(std::size_t blocks);
  // Removes dead ordinals from all holder sets, up to `budget` slots per call. begin() gives the dead ones as
  // bits, done() is called when no set has them any more. Returns at once when another thread is at it,
  // unless `wait`.
  void scrub(std::size_t budget, bool wait, const std::function<std::vector<std::uint64_t>()>& begin,
             const std::function<void()>& done);
  void tidy();

  struct Sizes {
    std::size_t blocks = 0;
    std::size_t engine_hashes = 0;
    std::size_t table_bytes = 0;
    std::size_t holder_sets = 0;
    std::size_t holder_set_bytes = 0;
    std::uint64_t evicted_blocks = 0;
    std::uint64_t refused_holders = 0;
  };
  Sizes sizes() const;

 private:
  // The last change of a set, because consecutive blocks mostly have the same holders. Valid under one Pin.
  struct Transition {
    HolderRef from;
    HolderRef to;
  };

  // Calls work(shard, index of the key) for all keys, shard by shard under the lock of that shard of
  // `shards`, so that a lock is taken once per shard and not once per key. Before all that, prepare(index)
  // for each.
  template <typename Shard, typename Prepare, typename Work>
  void by_shard(Shard* shards, std::span<const std::uint64_t> keys, Prepare&& prepare, Work&& work) const;

  std::size_t shard_of(std::uint64_t key) const { return key >> kShardShift & shard_mask_; }
  BlockShard& block_shard(BlockKey key) const { return block_shards_[shard_of(key)]; }
  EngineHashShard& engine_shard(EngineKey key) const { return engine_shards_[shard_of(key)]; }
  std::optional<HolderRef> with(HolderRef holders, Ordinal ordinal, Transition& last);
  void make_room(EngineHashShard& shard, const Pin& pin);
  bool has_too_many(const EngineHashShard& shard, EngineKey engine, Ordinal ordinal, const Pin& pin) const;
  void link_back(const WriteBatch& batch);
  void purge_reverse(EngineHashShard& shard, const Pin& pin);
  void purge(EngineHashShard& shard, const Pin& pin);
  bool scrub_shard(std::size_t& budget, const Pin& pin);
  HolderRef scrubbed(HolderRef holders, Transition& last);

  static constexpr unsigned kShardShift = 52;
  static constexpr std::size_t kMaxShards = std::size_t{1} << (64 - kShardShift);

  const Limits limits_;
  const std::size_t engine_hashes_per_shard_;
  const std::size_t shard_mask_;
  const HashScrambler scrambler_;
  ReadEpochs epochs_;
  HolderPool pool_;
  std::unique_ptr<BlockShard[]> block_shards_;
  std::unique_ptr<EngineHashShard[]> engine_shards_;
  // The other way round, block -> engine hashes, when asked for: keys and values have changed places. What it
  // says is believed only while engine_shards_ agrees, so it may be late in forgetting.
  std::unique_ptr<EngineHashShard[]> reverse_shards_;
  std::unique_ptr<std::atomic<std::uint64_t>[]>
      purged_at_;  // value of orphan_hints_ at the shard's last purge

  // How often a block may have gone while an engine hash still leads to it.
  std::atomic<std::uint64_t> orphan_hints_{0};
  std::atomic<std::uint64_t> evicted_blocks_{0};
  std::atomic<std::uint64_t> refused_holders_{0};

  std::mutex scrub_mutex_;
  bool scrubbing_ = false;
  std::vector<std::uint64_t> dead_;
  std::size_t scrub_shard_ = 0;
  std::size_t scrub_position_ = 0;
  std::uint64_t scrub_generation_ = 0;
};

}  // namespace handoff::epp
