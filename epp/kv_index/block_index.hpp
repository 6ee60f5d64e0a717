#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "epp/kv_index/overlap_scores.hpp"
#include "epp/kv_index/worker_rank.hpp"

namespace handoff::epp {

using SteadyTime = std::chrono::steady_clock::time_point;

struct BlockIndexOptions {
  // The bound of memory. At the bound a new block takes the place of one that was not matched or stored
  // lately.
  std::size_t max_blocks = std::size_t{8} << 20;
  // Engine hashes remembered. One per block where engines agree on their hashes, one per holder where they
  // don't.
  std::size_t max_engine_hashes = std::size_t{16} << 20;
  // Bytes of distinct holder sets. At the bound further holders of a block are not recorded.
  std::size_t max_holder_set_bytes = std::size_t{256} << 20;
  // Life of a predicted block. It lives at least this long and at most a quarter longer. 0: predictions are
  // not kept.
  std::chrono::milliseconds predicted_ttl = std::chrono::seconds{120};
  // As by expect(), from the start. 0: grows as it fills.
  std::size_t expected_blocks = 0;
  // Power of two. More shards: shorter waits between writers, shorter pauses of one writer when a table
  // grows; fewer: an event takes fewer locks (with 16 it takes a sixth longer).
  std::size_t shards = 8;
  // Also block -> engine hash, for engine_hashes(). About as much memory again as the engine hashes.
  bool keeps_engine_hashes = false;
};

// Consecutive blocks as an engine announces them. Views: valid during the call.
struct StoredBlocks {
  std::optional<std::uint64_t> parent_engine_hash;  // nullopt: the first block starts a prompt
  std::span<const std::uint64_t> engine_hashes;     // the engine's own ids: opaque
  std::span<const std::uint64_t> local_hashes;      // ours, from the token ids: local_block_hash()
};

enum class StoreOutcome : std::uint8_t {
  applied,
  already_stored,    // nothing new: every block was known
  unknown_rank,      // not registered (any more)
  unknown_parent,    // the rank does not hold the parent, so the position is unknown: nothing stored
  ambiguous_parent,  // the parent's hash stands for several blocks of the rank: nothing stored
  malformed,         // lengths differ, or one hash twice: nothing stored
  conflicting_hash   // an engine hash came with too many different contents from this rank: stored without
                     // that block
};

struct BlockIndexStats {
  std::size_t blocks = 0;
  std::size_t engine_hashes = 0;
  std::size_t holder_sets = 0;
  std::size_t holder_set_bytes = 0;
  std::size_t table_bytes = 0;
  std::size_t retired_bytes = 0;  // waiting for readers that may still look at them
  std::size_t ranks = 0;
  std::size_t ordinals = 0;
  std::uint64_t evicted_blocks = 0;
  std::uint64_t refused_holders = 0;  // the bound of holder-set bytes was reached
  std::uint64_t stores = 0;
  std::uint64_t duplicate_stores = 0;
  std::uint64_t unknown_parents = 0;
  std::uint64_t malformed_stores = 0;
  std::uint64_t conflicting_hashes = 0;
  std::uint64_t removals = 0;          // blocks
  std::uint64_t unknown_removals = 0;  // blocks that the rank was not known to hold
  std::uint64_t predicted_blocks = 0;
  std::uint64_t clears = 0;

  std::size_t bytes() const { return holder_set_bytes + table_bytes + retired_bytes; }
};

// Which worker ranks hold which prefixes, over all tiers. One per model and routing group; it must outlive
// the feeds that write to it.
//
// Threads: every method may be called from any thread. match_prefix takes no lock and never waits for a
// writer. Writers of different blocks run in parallel. The events of one rank must be applied in order, so by
// one thread at a time. A match that runs beside a store sees each block before or after it.
class BlockIndex {
 public:
  explicit BlockIndex(const BlockIndexOptions& options = {});
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // Idempotent. nullopt when there is no room for another rank (about 65,000 of them with one tier each).
  std::optional<RankSlot> add_rank(WorkerRank rank);
  std::optional<RankSlot> slot_of(WorkerRank rank) const;
  // Forgets the rank, its blocks and predictions. In constant time: the blocks are scrubbed bit by bit by
  // later writes.
  bool remove_rank(WorkerRank rank);
  // All ranks of the worker; how many there were.
  std::size_t remove_worker(std::uint64_t worker);
  // Drops the rank's blocks of every tier and its predictions; the rank stays. Constant time, like
  // remove_rank.
  bool clear_rank(WorkerRank rank);

  StoreOutcome apply_stored(WorkerRank rank, Tier tier, const StoredBlocks& blocks);
  // A store without tokens: these blocks, known from other tiers, are now in `tier` too. Returns how many
  // were known.
  std::size_t apply_copied(WorkerRank rank, Tier tier, std::span<const std::uint64_t> engine_hashes);
  // Returns how many of them the rank was known to hold in that tier.
  std::size_t apply_removed(WorkerRank rank, Tier tier, std::span<const std::uint64_t> engine_hashes);

  // For a rank that publishes no events: the prefix was just sent there, so it will be on the device. Again =
  // refresh. Call it when a choice is booked, not when it is only considered.
  bool predict(WorkerRank rank, std::span<const std::uint64_t> sequence_hashes, SteadyTime now);
  // Drops what has run out. match_prefix and predict do not depend on it being called, the memory does: call
  // it every few seconds. Also moves on the scrubbing of removed ranks, a bounded step at a time.
  void maintain(SteadyTime now);

  // Room for so many blocks (up to max_blocks) from now on, so that no table has to grow under the events:
  // the sum of the workers' total_kv_blocks, for instance. Fewer than before give memory back in maintain().
  // Costs as much as a copy of the tables: call it when workers come and go. One caller at a time.
  void expect(std::size_t blocks);

  // Scores every rank that holds a prefix of the request. See hash_request.
  void match_prefix(std::span<const std::uint64_t> sequence_hashes, SteadyTime now, OverlapScores& out) const;

  // The engines' own hashes of these blocks, in their order; replaces `out`. False, and `out` useless, when
  // one is not known, or engines disagree about it. Needs keeps_engine_hashes.
  bool engine_hashes(std::span<const std::uint64_t> sequence_hashes, std::vector<std::uint64_t>& out) const;

  BlockIndexStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace handoff::epp
