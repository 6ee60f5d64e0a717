#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "epp/selection/kv_event_subscriptions.hpp"
#include "epp/selection/overlap_source.hpp"
#include "epp/selection/selector_config.hpp"

namespace handoff::epp {

// The KV view of a partition: a block index of its own, fed by subscriptions. Ranks that publish no events
// are in the same index and live on predictions.
//
// Owner: Partition. Threads: any; reads take no lock.
class IndexOverlapSource final : public OverlapSource {
 public:
  // Without a factory, or with use_kv_events off, no rank is followed.
  IndexOverlapSource(const BlockIndexOptions& options, bool use_kv_events,
                     const KvSubscriptionsFactory& subscriptions);
  ~IndexOverlapSource() override;

  std::optional<RankSlot> add_rank(WorkerRank rank, const WorkerRecord& worker) override;
  void remove_rank(WorkerRank rank) override;
  void match(std::span<const std::uint64_t> sequence_hashes, SteadyTime now,
             std::vector<RankOverlap>& rows) override;
  void predict(WorkerRank rank, std::span<const std::uint64_t> sequence_hashes, SteadyTime now) override;
  void maintain(SteadyTime now) override;
  bool engine_hashes(std::span<const std::uint64_t> sequence_hashes,
                     std::vector<std::uint64_t>& out) const override;
  KvStatus status() const override;
  std::vector<std::string> problems() const override;

  BlockIndex& index() { return index_; }

 private:
  struct Followed {
    KvSubscription subscription;
    std::string problem;            // empty: it is followed
    std::uint64_t most_blocks = 0;  // that it can hold; 0: not known
  };

  // Under the lock.
  void stop_following(WorkerRank rank);
  void make_room();

  BlockIndex index_;
  mutable std::mutex mutex_;  // subscribing and unsubscribing, not the index
  std::unique_ptr<KvEventSubscriptions> subscriptions_;
  std::map<WorkerRank, Followed> followed_;
  std::uint64_t most_blocks_ = 0;  // that all of them can hold together
  std::uint64_t expected_ = 0;     // what the index was told of that
};

// One IndexOverlapSource per partition; predicted entries live as long as the configuration says.
OverlapSourceFactory index_overlap_sources(const SelectorConfig& config, BlockIndexOptions options,
                                           KvSubscriptionsFactory subscriptions);

}  // namespace handoff::epp
