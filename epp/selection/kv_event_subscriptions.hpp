#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "epp/kv_index/worker_rank.hpp"

namespace handoff::epp {

class BlockIndex;
struct KvRankStatus;

// Where the events of one rank come from and how to read them.
struct KvSubscription {
  WorkerRank rank;
  std::string events_endpoint;  // SUB
  std::string replay_endpoint;  // ROUTER; empty: gaps cannot be filled
  std::uint32_t block_size = 0;
  bool is_eagle = false;
  // The worker's ranks: its batches may name any of them.
  std::uint32_t first_rank = 0;
  std::uint32_t rank_count = 1;
  bool operator==(const KvSubscription&) const = default;
};

// Keeps one block index fed with the events of its ranks. An interface, so that tests publish by hand.
//
// Owner: IndexOverlapSource, which calls one method at a time. After unsubscribe() returns, nothing more is
// written to the index for that rank.
class KvEventSubscriptions {
 public:
  virtual ~KvEventSubscriptions() = default;
  // Says what is wrong with the addresses; empty when the rank is followed.
  virtual std::string subscribe(const KvSubscription& subscription) = 0;
  virtual void unsubscribe(WorkerRank rank) = 0;
  // Fills in the counters of a rank that is followed.
  virtual void report(WorkerRank, KvRankStatus&) const {}
};

using KvSubscriptionsFactory = std::function<std::unique_ptr<KvEventSubscriptions>(BlockIndex&)>;

}  // namespace handoff::epp
