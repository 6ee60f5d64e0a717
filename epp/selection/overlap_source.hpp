#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "epp/selection/worker_record.hpp"

namespace handoff::epp {

struct PartitionKey {
  std::string model_name;
  std::string routing_group;
  auto operator<=>(const PartitionKey&) const = default;
};

// How the events of one rank fare. Counters since its subscription; see KvStreamCounters and
// KvApplierCounters for what they count.
struct KvRankStatus {
  WorkerRank rank;
  std::string problem;       // not empty: it can't be followed, and why
  bool is_complete = false;  // everything since the publisher's first batch is in
  double lag_seconds = 0.0;  // of the last batch: from the engine's time stamp to its application
  std::uint64_t next_sequence = 0;
  std::uint64_t batches = 0;
  std::uint64_t gaps = 0;
  std::uint64_t missed_batches = 0;
  std::uint64_t lost_histories = 0;
  std::uint64_t replays = 0;
  std::uint64_t failed_replays = 0;
  std::uint64_t replayed_batches = 0;
  std::uint64_t reconnects = 0;
  std::uint64_t restarts = 0;
  std::uint64_t contradictions = 0;
  std::uint64_t decode_errors = 0;
  std::uint64_t malformed_messages = 0;
  std::uint64_t stored_events = 0;
  std::uint64_t removed_events = 0;
  std::uint64_t cleared_events = 0;
  std::uint64_t ignored_events = 0;   // other cache groups, other places, unknown kinds
  std::uint64_t rejected_stores = 0;  // orphans, wrong block sizes, ambiguous salts, short tokens
};

// What a partition's KV view is made of, for metrics.
struct KvStatus {
  PartitionKey partition;
  BlockIndexStats index;
  std::vector<KvRankStatus> ranks;  // those that should be followed, by rank
};

// What a partition knows about the KV caches of its ranks. The real one is IndexOverlapSource (block index
// plus event subscriptions); tests give their own. One per partition, owned by it.
//
// Threads: all methods from any thread. match() and predict() must not call back into the selection service.
class OverlapSource {
 public:
  virtual ~OverlapSource() = default;

  // Starts to follow a rank; the number finds its rows in match(). Idempotent; a changed event address in
  // `worker` replaces the subscription and forgets what the old one taught. nullopt: no room, the rank is
  // then scheduled by load alone.
  virtual std::optional<RankSlot> add_rank(WorkerRank rank, const WorkerRecord& worker) = 0;
  virtual void remove_rank(WorkerRank rank) = 0;

  // Rows of every rank that holds a prefix of the request; replaces the content of `rows`.
  virtual void match(std::span<const std::uint64_t> sequence_hashes, SteadyTime now,
                     std::vector<RankOverlap>& rows) = 0;

  // The prompt was booked on a rank that publishes no events.
  virtual void predict(WorkerRank rank, std::span<const std::uint64_t> sequence_hashes, SteadyTime now) = 0;

  virtual void maintain(SteadyTime now) = 0;

  // The engines' own hashes of these blocks, for a KV-fetch hint; `out` is replaced. False when one is not
  // known, or not known for sure.
  virtual bool engine_hashes(std::span<const std::uint64_t>, std::vector<std::uint64_t>&) const {
    return false;
  }

  virtual KvStatus status() const { return {}; }

  // Ranks that should be followed and cannot be, one line each. They are scheduled by load alone.
  virtual std::vector<std::string> problems() const { return {}; }
};

// Makes the KV view of a new partition; a null result: selection by load alone.
using OverlapSourceFactory = std::function<std::unique_ptr<OverlapSource>(
    const PartitionKey& key, std::uint32_t block_size, bool is_eagle)>;

}  // namespace handoff::epp
