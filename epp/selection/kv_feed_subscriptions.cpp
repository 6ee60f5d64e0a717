#include "epp/selection/kv_feed_subscriptions.hpp"

#include <chrono>
#include <optional>
#include <utility>

#include "epp/kv_index/kv_event_feed.hpp"

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
