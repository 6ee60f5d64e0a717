#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "epp/kv_index/overlap_scores.hpp"
#include "epp/selection/active_blocks.hpp"
#include "epp/selection/worker_record.hpp"

namespace handoff::epp {

// One rank as the selection sees it.
struct RankState {
  WorkerRank rank;
  std::shared_ptr<const WorkerRecord> worker;  // null: the slot is free
  std::optional<RankSlot> index_slot;          // its rows in the KV index
  std::uint64_t tie_key = 0;
  bool schedulable = false;
  bool predicts = false;  // publishes no events: bookings teach the index
};

// The ranks of one partition in an array, so that the loops over all candidates are loops over memory. A slot
// keeps its number while its rank lives; free slots are used again.
//
// Owner: Partition, under its lock.
class RankTable {
 public:
  using Slot = ActiveBlocks::Slot;

  std::optional<Slot> find(WorkerRank rank) const;
  // Adds or replaces the state of `state.rank`.
  Slot put(RankState state);
  void erase(Slot slot);

  // The slot a row of the index belongs to; nullopt for a rank that is not ours (any more).
  std::optional<Slot> slot_of(const RankOverlap& row) const;

  // The slots of a worker's ranks.
  std::vector<Slot> slots_of(WorkerId worker) const;

  // All slots, free ones included.
  const std::vector<RankState>& slots() const { return slots_; }
  const RankState& operator[](Slot slot) const { return slots_[slot]; }

  std::size_t ranks() const { return by_rank_.size(); }
  std::size_t schedulable_ranks() const { return schedulable_; }
  // Workers with at least one schedulable rank; the queue limits scale with it.
  std::size_t schedulable_workers() const { return schedulable_workers_; }

 private:
  struct Worker {
    std::vector<Slot> slots;
    std::size_t schedulable = 0;
  };

  void count(const RankState& state, bool arrives);

  std::vector<RankState> slots_;
  std::vector<Slot> free_;
  std::unordered_map<WorkerRank, Slot, WorkerRankHash> by_rank_;
  std::vector<Slot> by_index_slot_;
  std::unordered_map<WorkerId, Worker> workers_;
  std::size_t schedulable_ = 0;
  std::size_t schedulable_workers_ = 0;
};

}  // namespace handoff::epp
