#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "epp/kv_index/block_index.hpp"
#include "epp/selection/kv_event_subscriptions.hpp"
#include "epp/selection/overlap_source.hpp"

namespace handoff::epp {

// The KV view of a partition: a block index of its own, fed by subscriptions. Ranks that publish no events
// are in the same index and live on predictions.
//
// Owner: Partition. Threads: any; reads take no lock. `subscriptions` (may be null: predictions only)
// outlives it.
class IndexOverlapSource final : public OverlapSource {
 public:
  IndexOverlapSource(const BlockIndexOptions& options, bool use_kv_events,
                     KvEventSubscriptions* subscriptions);
  ~IndexOverlapSource() override;

  std::optional<RankSlot> add_rank(WorkerRank rank, const WorkerRecord& worker) override;
  void remove_rank(WorkerRank rank) override;
  void match(std::span<const std::uint64_t> sequence_hashes, SteadyTime now,
             std::vector<RankOverlap>& rows) override;
  void predict(WorkerRank rank, std::span<const std::uint64_t> sequence_hashes, SteadyTime now) override;
  void maintain(SteadyTime now) override;

  BlockIndex& index() { return index_; }

 private:
  // Under the lock.
  void stop_following(WorkerRank rank);

  const bool use_kv_events_;
  KvEventSubscriptions* const subscriptions_;
  BlockIndex index_;
  std::mutex mutex_;  // subscribing and unsubscribing, not the index
  std::map<WorkerRank, KvEventAddress> followed_;
};

}  // namespace handoff::epp
