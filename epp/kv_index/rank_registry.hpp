#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "epp/kv_index/holder_set.hpp"
#include "epp/kv_index/overlap_scores.hpp"
#include "epp/kv_index/read_epochs.hpp"
#include "epp/kv_index/shared_parts.hpp"

namespace handoff::epp {

using SteadyTime = std::chrono::steady_clock::time_point;

inline constexpr RankSlot kNoSlot = 0xFFFFFFFF;

// What an ordinal stands for. Dead ones (no slot) may still be found in holder sets until they are scrubbed.
struct OrdinalInfo {
  RankSlot slot = kNoSlot;
  Tier tier = Tier::device;
  SteadyTime expires = SteadyTime::max();  // of predictions
};

struct PredictedOrdinal {
  Ordinal ordinal = kNoOrdinal;
  std::int64_t window = 0;
};

// A rank's ordinals: one per tier that it ever stored to, and one per time window of its predictions that
// still counts.
struct RankOrdinals {
  static constexpr std::size_t kMaxPredicted = 6;

  WorkerRank rank;
  bool registered = false;
  std::array<Ordinal, kTierCount> tiers = {kNoOrdinal, kNoOrdinal, kNoOrdinal, kNoOrdinal};
  std::array<PredictedOrdinal, kMaxPredicted> predicted;

  template <typename Visit>
  void for_each_stored(Visit&& visit) const {
    for (const Ordinal ordinal : tiers) {
      if (ordinal != kNoOrdinal) visit(ordinal);
    }
  }
};

// What a match needs to know about ranks. Published ones don't change; what is alike in two of them is there
// once, so that a change costs little however many ranks there are.
struct RankSnapshot {
  SharedPages<OrdinalInfo> ordinals;
  SharedPages<RankOrdinals> slots;
};

// Gives ranks slots and ordinals. Owned by the index. Any thread; one lock, held briefly. Readers of
// snapshot() need a Pin.
//
// A rank is cleared by taking its ordinals away: in the snapshot at once, in the holder sets of its blocks by
// and by. An ordinal is given out again only when it is in no set and no reader has a snapshot in which it
// was the old rank's.
class RankRegistry {
 public:
  explicit RankRegistry(ReadEpochs& epochs);
  ~RankRegistry();
  RankRegistry(const RankRegistry&) = delete;
  RankRegistry& operator=(const RankRegistry&) = delete;

  const RankSnapshot& snapshot() const { return *snapshot_.load(std::memory_order_acquire); }

  std::optional<RankSlot> add(WorkerRank rank);
  std::optional<RankSlot> slot_of(WorkerRank rank) const;
  std::vector<WorkerRank> ranks_of(std::uint64_t worker) const;

  // Held while the blocks of the rank change, so that no write is under way when its ordinals are taken.
  std::mutex& write_mutex(RankSlot slot) { return write_mutexes_[slot % write_mutexes_.size()]; }

  // The rest under write_mutex(slot).
  // A copy; nullopt when the slot is not this rank's any more.
  std::optional<RankOrdinals> ordinals_of(RankSlot slot, WorkerRank rank) const;
  // Makes one when there is none; kNoOrdinal when all are in use.
  Ordinal tier_ordinal(RankSlot slot, Tier tier);
  Ordinal predicted_ordinal(RankSlot slot, std::int64_t window, SteadyTime expires);
  void drop_predicted_before(RankSlot slot, SteadyTime now);
  void clear(RankSlot slot);
  void remove(RankSlot slot);

  // Slots with predictions that have run out.
  std::vector<RankSlot> slots_with_expired(SteadyTime now) const;

  // --- scrubbing ---
  bool has_dead() const { return dead_count_.load(std::memory_order_relaxed) != 0; }
  // All ordinals that are dead now, as bits; they stay dead until scrubbed() is called.
  std::vector<std::uint64_t> begin_scrub();
  void scrubbed();

  std::size_t ranks() const;
  std::size_t ordinals_in_use() const;

 private:
  Ordinal allocate(RankSlot slot, Tier tier, SteadyTime expires);
  void take_ordinals(RankOrdinals& entry);
  void kill(Ordinal ordinal);
  void publish();

  struct RankHash {
    std::size_t operator()(const WorkerRank& rank) const {
      return static_cast<std::size_t>((rank.worker ^ std::uint64_t{rank.rank} << 40) * 0x9E3779B97F4A7C15U >>
                                      13);
    }
  };
  struct Resting {
    std::uint64_t epoch;
    std::vector<Ordinal> ordinals;
  };

  ReadEpochs& epochs_;
  mutable std::mutex mutex_;
  std::array<std::mutex, 256> write_mutexes_;
  std::unordered_map<WorkerRank, RankSlot, RankHash> slot_of_;
  std::vector<RankSlot> free_slots_;
  std::vector<Ordinal> free_ordinals_;
  std::vector<Ordinal> dead_;       // since the last begin_scrub
  std::vector<Ordinal> scrubbing_;  // being scrubbed
  std::deque<Resting> resting_;     // scrubbed, perhaps still in a reader's snapshot
  std::atomic<std::size_t> dead_count_{0};
  RankSnapshot current_;
  std::atomic<const RankSnapshot*> snapshot_;
};

}  // namespace handoff::epp
