#include "epp/kv_index/rank_registry.hpp"

#include <algorithm>

namespace handoff::epp {

RankRegistry::RankRegistry(ReadEpochs& epochs) : epochs_(epochs), snapshot_(new RankSnapshot) {}

RankRegistry::~RankRegistry() {
  delete snapshot_.load();
}

void RankRegistry::publish() {
  const auto* now = new RankSnapshot{current_.ordinals.share(), current_.slots.share()};
  const RankSnapshot* old = snapshot_.exchange(now, std::memory_order_acq_rel);
  const std::size_t bytes = old->ordinals.bytes_alone() + old->slots.bytes_alone();
  epochs_.retire(
      const_cast<RankSnapshot*>(old), [](void* object) { delete static_cast<RankSnapshot*>(object); }, bytes);
}

std::optional<RankSlot> RankRegistry::add(WorkerRank rank) {
  const std::lock_guard lock(mutex_);
  if (const auto known = slot_of_.find(rank); known != slot_of_.end()) return known->second;
  RankSlot slot = static_cast<RankSlot>(current_.slots.size());
  if (!free_slots_.empty()) {
    slot = free_slots_.back();
  } else {
    current_.slots.emplace_back();
  }
  const Ordinal device = allocate(slot, Tier::device, SteadyTime::max());
  if (device == kNoOrdinal) {
    if (free_slots_.empty()) current_.slots.pop_back();
    return std::nullopt;
  }
  if (!free_slots_.empty()) free_slots_.pop_back();
  RankOrdinals entry;
  entry.rank = rank;
  entry.registered = true;
  entry.tiers[0] = device;
  current_.slots.change(slot) = entry;
  slot_of_.emplace(rank, slot);
  publish();
  return slot;
}

std::optional<RankSlot> RankRegistry::slot_of(WorkerRank rank) const {
  const std::lock_guard lock(mutex_);
  const auto known = slot_of_.find(rank);
  if (known == slot_of_.end()) return std::nullopt;
  return known->second;
}

std::vector<WorkerRank> RankRegistry::ranks_of(std::uint64_t worker) const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkerRank> ranks;
  for (RankSlot slot = 0; slot < current_.slots.size(); ++slot) {
    const RankOrdinals& entry = current_.slots[slot];
    if (entry.registered && entry.rank.worker == worker) ranks.push_back(entry.rank);
  }
  return ranks;
}

std::optional<RankOrdinals> RankRegistry::ordinals_of(RankSlot slot, WorkerRank rank) const {
  const std::lock_guard lock(mutex_);
  const RankOrdinals& entry = current_.slots[slot];
  if (!entry.registered || entry.rank != rank) return std::nullopt;
  return entry;
}

Ordinal RankRegistry::tier_ordinal(RankSlot slot, Tier tier) {
  const std::lock_guard lock(mutex_);
  const auto place = static_cast<std::size_t>(tier);
  if (const Ordinal known = current_.slots[slot].tiers[place]; known != kNoOrdinal) return known;
  const Ordinal ordinal = allocate(slot, tier, SteadyTime::max());
  if (ordinal == kNoOrdinal) return kNoOrdinal;
  current_.slots.change(slot).tiers[place] = ordinal;
  publish();
  return ordinal;
}

Ordinal RankRegistry::predicted_ordinal(RankSlot slot, std::int64_t window, SteadyTime expires) {
  const std::lock_guard lock(mutex_);
  const auto& predicted = current_.slots[slot].predicted;
  const auto same = std::find_if(predicted.begin(), predicted.end(), [window](const PredictedOrdinal& entry) {
    return entry.ordinal != kNoOrdinal && entry.window == window;
  });
  if (same != predicted.end()) return same->ordinal;
  const auto free = std::find_if(predicted.begin(), predicted.end(),
                                 [](const PredictedOrdinal& entry) { return entry.ordinal == kNoOrdinal; });
  if (free == predicted.end()) return kNoOrdinal;
  const Ordinal ordinal = allocate(slot, Tier::device, expires);
  if (ordinal == kNoOrdinal) return kNoOrdinal;
  const auto place = static_cast<std::size_t>(free - predicted.begin());
  current_.slots.change(slot).predicted[place] = {ordinal, window};
  publish();
  return ordinal;
}

void RankRegistry::drop_predicted_before(RankSlot slot, SteadyTime now) {
  const std::lock_guard lock(mutex_);
  const auto has_run_out = [&](const PredictedOrdinal& entry) {
    return entry.ordinal != kNoOrdinal && current_.ordinals[entry.ordinal].expires <= now;
  };
  const auto& seen = current_.slots[slot].predicted;
  if (std::none_of(seen.begin(), seen.end(), has_run_out)) return;
  for (PredictedOrdinal& entry : current_.slots.change(slot).predicted) {
    if (!has_run_out(entry)) continue;
    kill(entry.ordinal);
    entry.ordinal = kNoOrdinal;
  }
  publish();
}

void RankRegistry::clear(RankSlot slot) {
  const std::lock_guard lock(mutex_);
  take_ordinals(current_.slots.change(slot));
  publish();
}

void RankRegistry::take_ordinals(RankOrdinals& entry) {
  for (Ordinal& ordinal : entry.tiers) {
    if (ordinal != kNoOrdinal) kill(ordinal);
    ordinal = kNoOrdinal;
  }
  for (PredictedOrdinal& predicted : entry.predicted) {
    if (predicted.ordinal != kNoOrdinal) kill(predicted.ordinal);
    predicted = PredictedOrdinal{};
  }
}

void RankRegistry::remove(RankSlot slot) {
  const std::lock_guard lock(mutex_);
  RankOrdinals& entry = current_.slots.change(slot);
  take_ordinals(entry);
  slot_of_.erase(entry.rank);
  entry = RankOrdinals{};
  free_slots_.push_back(slot);
  publish();
}

std::vector<RankSlot> RankRegistry::slots_with_expired(SteadyTime now) const {
  const std::lock_guard lock(mutex_);
  std::vector<RankSlot> slots;
  for (RankSlot slot = 0; slot < current_.slots.size(); ++slot) {
    const auto& predicted = current_.slots[slot].predicted;
    const auto expired = [&](const PredictedOrdinal& entry) {
      return entry.ordinal != kNoOrdinal && current_.ordinals[entry.ordinal].expires <= now;
    };
    if (std::any_of(predicted.begin(), predicted.end(), expired)) slots.push_back(slot);
  }
  return slots;
}

std::vector<std::uint64_t> RankRegistry::begin_scrub() {
  const std::lock_guard lock(mutex_);
  scrubbing_.insert(scrubbing_.end(), dead_.begin(), dead_.end());
  dead_.clear();
  std::vector<std::uint64_t> bits;
  for (const Ordinal ordinal : scrubbing_) {
    if (bits.size() <= ordinal / 64) bits.resize(ordinal / 64 + 1);
    bits[ordinal / 64] |= std::uint64_t{1} << (ordinal % 64);
  }
  return bits;
}

void RankRegistry::scrubbed() {
  const std::lock_guard lock(mutex_);
  dead_count_.fetch_sub(scrubbing_.size(), std::memory_order_relaxed);
  resting_.push_back({epochs_.advance(), std::move(scrubbing_)});
  scrubbing_.clear();
}

std::size_t RankRegistry::ranks() const {
  const std::lock_guard lock(mutex_);
  return slot_of_.size();
}

std::size_t RankRegistry::ordinals_in_use() const {
  const std::lock_guard lock(mutex_);
  std::size_t resting = 0;
  for (const Resting& group : resting_) resting += group.ordinals.size();
  return current_.ordinals.size() - free_ordinals_.size() - resting;
}

Ordinal RankRegistry::allocate(RankSlot slot, Tier tier, SteadyTime expires) {
  while (!resting_.empty() && epochs_.passed(resting_.front().epoch)) {
    const auto& rested = resting_.front().ordinals;
    free_ordinals_.insert(free_ordinals_.end(), rested.begin(), rested.end());
    resting_.pop_front();
  }
  Ordinal ordinal = kNoOrdinal;
  if (!free_ordinals_.empty()) {
    ordinal = free_ordinals_.back();
    free_ordinals_.pop_back();
  } else if (current_.ordinals.size() < kMaxOrdinals) {
    ordinal = static_cast<Ordinal>(current_.ordinals.size());
    current_.ordinals.emplace_back();
  } else {
    return kNoOrdinal;
  }
  current_.ordinals.change(ordinal) = {slot, tier, expires};
  return ordinal;
}

void RankRegistry::kill(Ordinal ordinal) {
  current_.ordinals.change(ordinal) = OrdinalInfo{};
  dead_.push_back(ordinal);
  dead_count_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace handoff::epp
