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

  // Ranks that should be followed and cannot be, one line each. They are scheduled by load alone.
  virtual std::vector<std::string> problems() const { return {}; }
};

// Makes the KV view of a new partition; a null result: selection by load alone.
using OverlapSourceFactory = std::function<std::unique_ptr<OverlapSource>(
    const PartitionKey& key, std::uint32_t block_size, bool is_eagle)>;

}  // namespace handoff::epp
