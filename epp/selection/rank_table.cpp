#include "epp/selection/rank_table.hpp"

#include <limits>
#include <utility>

namespace handoff::epp {
namespace {

constexpr RankTable::Slot kNoSlot = std::numeric_limits<RankTable::Slot>::max();

}  // namespace

std::optional<RankTable::Slot> RankTable::find(WorkerRank rank) const {
  const auto found = by_rank_.find(rank);
  if (found == by_rank_.end()) return std::nullopt;
  return found->second;
}

RankTable::Slot RankTable::put(RankState state) {
  Slot slot = 0;
  if (const auto known = find(state.rank)) {
    slot = *known;
    count(slots_[slot], false);
  } else {
    if (free_.empty()) {
      slot = static_cast<Slot>(slots_.size());
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    by_rank_.emplace(state.rank, slot);
    workers_[state.rank.worker].slots.push_back(slot);
  }
  if (state.index_slot) {
    if (*state.index_slot >= by_index_slot_.size()) by_index_slot_.resize(*state.index_slot + 1, kNoSlot);
    by_index_slot_[*state.index_slot] = slot;
  }
  count(state, true);
  slots_[slot] = std::move(state);
  return slot;
}

void RankTable::erase(Slot slot) {
  count(slots_[slot], false);
  by_rank_.erase(slots_[slot].rank);
  const auto worker = workers_.find(slots_[slot].rank.worker);
  std::erase(worker->second.slots, slot);
  if (worker->second.slots.empty()) workers_.erase(worker);
  // Rows that waiting requests got for it may not be taken for those of a successor.
  if (const auto index_slot = slots_[slot].index_slot) by_index_slot_[*index_slot] = kNoSlot;
  slots_[slot] = RankState{};
  free_.push_back(slot);
}

std::optional<RankTable::Slot> RankTable::slot_of(const RankOverlap& row) const {
  if (row.slot >= by_index_slot_.size()) return std::nullopt;
  const Slot slot = by_index_slot_[row.slot];
  // Index slots are used again; the rank itself decides.
  if (slot >= slots_.size() || slots_[slot].worker == nullptr || slots_[slot].rank != row.rank) {
    return std::nullopt;
  }
  return slot;
}

std::vector<RankTable::Slot> RankTable::slots_of(WorkerId worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? std::vector<Slot>() : found->second.slots;
}

void RankTable::count(const RankState& state, bool arrives) {
  if (!state.schedulable) return;
  Worker& worker = workers_.at(state.rank.worker);
  if (arrives) {
    ++schedulable_;
    if (++worker.schedulable == 1) ++schedulable_workers_;
  } else {
    --schedulable_;
    if (--worker.schedulable == 0) --schedulable_workers_;
  }
}

}  // namespace handoff::epp
