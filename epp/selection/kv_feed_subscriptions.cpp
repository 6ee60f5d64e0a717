#include "epp/selection/kv_feed_subscriptions.hpp"

#include <chrono>
#include <optional>
#include <utility>

#include "epp/kv_index/kv_event_feed.hpp"
#include "epp/selection/overlap_source.hpp"

namespace handoff::epp {
namespace {

class KvFeedSubscriptions final : public KvEventSubscriptions {
 public:
  KvFeedSubscriptions(BlockIndex& index, std::size_t threads, std::function<SteadyTime()> clock)
      : index_(index), threads_(threads), clock_(std::move(clock)) {}

  std::string subscribe(const KvSubscription& subscription) override {
    if (!pool_) pool_.emplace(index_, threads_, clock_);
    KvFeedOptions options;
    options.applier.rank = subscription.rank;
    options.applier.first_rank = subscription.first_rank;
    options.applier.rank_count = subscription.rank_count;
    options.applier.block_size = subscription.block_size;
    options.applier.is_eagle = subscription.is_eagle;
    options.applier.wall_clock = [] {
      return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    };
    options.events_endpoint = subscription.events_endpoint;
    options.replay_endpoint = subscription.replay_endpoint;
    std::string error;
    pool_->add(std::move(options), error);
    return error;
  }

  void unsubscribe(WorkerRank rank) override {
    if (pool_) pool_->remove(rank);
  }

  void report(WorkerRank rank, KvRankStatus& out) const override {
    const auto feed = pool_ ? pool_->find(rank) : nullptr;
    if (feed == nullptr) return;
    const KvStreamCounters& stream = feed->stream_counters();
    out.is_complete = stream.is_complete;
    out.next_sequence = stream.next_sequence;
    out.batches = stream.batches;
    out.gaps = stream.gaps;
    out.missed_batches = stream.missed_batches;
    out.lost_histories = stream.lost_histories;
    out.replays = stream.replays;
    out.failed_replays = stream.failed_replays;
    out.replayed_batches = stream.replayed_batches;
    out.reconnects = stream.reconnects;
    out.restarts = stream.restarts;
    out.contradictions = stream.contradictions;
    const KvApplierCounters& applier = feed->applier_counters();
    out.lag_seconds = applier.lag_seconds;
    out.decode_errors = applier.decode_errors;
    out.malformed_messages = feed->malformed_messages();
    out.stored_events = applier.stored_events;
    out.removed_events = applier.removed_events;
    out.cleared_events = applier.cleared_events;
    out.ignored_events = applier.ignored_groups + applier.ignored_localities + applier.unknown_events;
    out.rejected_stores = applier.orphaned_stores + applier.rejected_stores + applier.wrong_block_sizes +
                          applier.ambiguous_salts + applier.ambiguous_parents + applier.refused_salts +
                          applier.short_tokens + applier.unusable_tokens;
  }

 private:
  BlockIndex& index_;
  const std::size_t threads_;
  const std::function<SteadyTime()> clock_;
  std::optional<KvFeedPool> pool_;
};

}  // namespace

KvSubscriptionsFactory kv_feed_subscriptions(std::size_t threads, std::function<SteadyTime()> clock) {
  return [threads, clock = std::move(clock)](BlockIndex& index) {
    return std::make_unique<KvFeedSubscriptions>(index, threads, clock);
  };
}

}  // namespace handoff::epp
