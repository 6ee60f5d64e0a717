#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "epp/selection/load_ledger.hpp"

namespace handoff::epp {

class Partition;

// What happened to an id before it was booked.
struct EarlyLifecycle {
  bool prefill_complete = false;
  std::uint64_t output_tokens = 0;
  std::uint64_t output_blocks = 0;
  std::optional<double> decay_fraction = std::nullopt;  // of the last of those blocks

  void merge(const EarlyLifecycle& later) {
    prefill_complete |= later.prefill_complete;
    output_tokens = std::max(output_tokens, later.output_tokens);
    output_blocks += later.output_blocks;
    if (later.decay_fraction) decay_fraction = later.decay_fraction;
  }
  bool any() const { return prefill_complete || output_tokens > 0 || output_blocks > 0; }
};

// Where each reservation id of the service is: held by a partition (booked or waiting there), or retired. A
// retired id was freed, or a lifecycle call for it came before its booking; it is remembered for a while, so
// that the order of the calls does not matter: whatever comes after the free finds the request finished.
//
// Threads: any; one short lock per shard, the innermost of the library (a partition may be locked around it).
class ReservationDirectory {
 public:
  enum class Claim : std::uint8_t { kClaimed, kAlreadyHere, kElsewhere, kFinished };

  ReservationDirectory(std::size_t max_retired, std::chrono::nanoseconds retired_ttl);

  // A booking's number: no two of the service have the same, whatever their ids and partitions.
  std::uint64_t next_attempt() { return attempts_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Takes the id for `partition`. `early` receives what was reported before.
  Claim claim(const std::string& id, const std::shared_ptr<Partition>& partition, SteadyTime now,
              EarlyLifecycle& early);
  // Gives a claimed id back as if it had never been claimed; `early` is what claim() had found.
  void release(std::string_view id, const EarlyLifecycle& early, SteadyTime now);
  // The booking ended.
  void retire(std::string_view id, SteadyTime now);

  // The partition that holds the id, or null.
  std::shared_ptr<Partition> find(std::string_view id);

  // The partition that holds the id. When none does, the call is remembered and the result is null;
  // `finished` tells whether the id had been freed before.
  std::shared_ptr<Partition> find_or_remember(std::string_view id, const EarlyLifecycle& call, SteadyTime now,
                                              bool& finished);
  // The same for a free: null when no partition holds the id, which is finished from then on.
  std::shared_ptr<Partition> find_or_finish(std::string_view id, SteadyTime now, bool& finished);

  std::size_t retired() const;

 private:
  struct Entry {
    std::weak_ptr<Partition> holder;
    bool held = false;
    bool finished = false;
    EarlyLifecycle early;
    std::uint64_t generation = 0;  // of the retirement; an older line in `order` is void
  };
  struct Retired {
    std::string id;
    SteadyTime at;
    std::uint64_t generation;
  };
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<std::string, Entry, TextHash, std::equal_to<>> entries;
    std::deque<Retired> order;
    std::uint64_t next_generation = 1;
  };

  Shard& shard(std::string_view id);
  // Under the shard's lock.
  void remember(Shard& shard, std::string_view id, Entry& entry, SteadyTime now);
  void trim(Shard& shard, SteadyTime now) const;
  Entry& entry_of(Shard& shard, std::string_view id, std::shared_ptr<Partition>& holder);

  static constexpr std::size_t kShards = 16;
  const std::size_t max_retired_per_shard_;
  const std::chrono::nanoseconds retired_ttl_;
  std::array<Shard, kShards> shards_;
  std::atomic<std::uint64_t> attempts_{0};
};

}  // namespace handoff::epp
