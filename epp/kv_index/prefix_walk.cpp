#include "epp/kv_index/prefix_walk.hpp"

#include <algorithm>
#include <bit>

namespace handoff::epp {

PrefixWalk::PrefixWalk(const RankSnapshot& ranks, SteadyTime now, OverlapScores& scores)
    : ranks_(ranks), now_(now), scores_(scores) {
  scores_.rows_.clear();
  scores_.steps_.clear();
}

bool PrefixWalk::is_usable(Ordinal ordinal) const {
  // A set may already name ordinals that are younger than our snapshot.
  if (ordinal >= ranks_.ordinals.size()) return false;
  const OrdinalInfo& info = ranks_.ordinals[ordinal];
  return info.slot != kNoSlot && info.expires > now_;
}

Ordinal PrefixWalk::next_ordinal(RankSlot slot, Tier from, HolderRef holders) const {
  const RankOrdinals& rank = ranks_.slots[slot];
  for (auto tier = static_cast<std::size_t>(from); tier < kTierCount; ++tier) {
    const Ordinal ordinal = rank.tiers[tier];
    if (ordinal != kNoOrdinal && holders.contains(ordinal)) return ordinal;
    if (tier != 0) continue;
    for (const PredictedOrdinal& predicted : rank.predicted) {
      if (predicted.ordinal == kNoOrdinal || !holders.contains(predicted.ordinal)) continue;
      if (is_usable(predicted.ordinal)) return predicted.ordinal;
    }
  }
  return kNoOrdinal;
}

void PrefixWalk::step_on(std::uint32_t row, Ordinal ordinal, std::uint32_t block) {
  scores_.steps_[row] = {ordinal, ranks_.ordinals[ordinal].tier, block};
  const std::size_t word = ordinal / 64U;
  scores_.active_[word] |= std::uint64_t{1} << (ordinal % 64);
  first_word_ = std::min(first_word_, word);
  end_word_ = std::max(end_word_, word + 1);
}

void PrefixWalk::close(std::uint32_t row, std::uint32_t block) {
  const OverlapScores::Step& step = scores_.steps_[row];
  RankOverlap& overlap = scores_.rows_[row];
  std::uint32_t* const depths[kTierCount] = {&overlap.device, &overlap.host, &overlap.disk,
                                             &overlap.external};
  *depths[static_cast<std::size_t>(step.tier)] += block - step.since;
}

void PrefixWalk::start(HolderRef holders) {
  scores_.active_.assign(ranks_.ordinals.size() / 64 + 1, 0);
  scores_.members_.assign(scores_.active_.size(), 0);
  if (scores_.row_of_slot_.size() < ranks_.slots.size()) scores_.row_of_slot_.resize(ranks_.slots.size());
  first_word_ = scores_.active_.size();
  end_word_ = 0;
  holders.for_each([&](Ordinal ordinal) {
    if (!is_usable(ordinal)) return;
    const RankSlot slot = ranks_.ordinals[ordinal].slot;
    const std::uint32_t known = scores_.row_of_slot_[slot];
    if (known < scores_.rows_.size() && scores_.rows_[known].slot == slot) return;
    const Ordinal best = next_ordinal(slot, Tier::device, holders);
    if (best == kNoOrdinal) return;
    const auto row = static_cast<std::uint32_t>(scores_.rows_.size());
    scores_.row_of_slot_[slot] = row;
    scores_.rows_.push_back({ranks_.slots[slot].rank, slot, 0, 0, 0, 0});
    scores_.steps_.emplace_back();
    step_on(row, best, 0);
    ++active_ranks_;
  });
}

void PrefixWalk::leave(Ordinal ordinal, HolderRef holders, std::uint32_t block) {
  const RankSlot slot = ranks_.ordinals[ordinal].slot;
  const std::uint32_t row = scores_.row_of_slot_[slot];
  close(row, block);
  scores_.active_[ordinal / 64U] &= ~(std::uint64_t{1} << (ordinal % 64));
  const Ordinal next = next_ordinal(slot, scores_.steps_[row].tier, holders);
  if (next != kNoOrdinal) {
    step_on(row, next, block);
  } else {
    --active_ranks_;
  }
}

void PrefixWalk::advance(HolderRef holders, std::uint32_t block) {
  const HolderSet* set = holders.set();
  const bool is_bitset = set != nullptr && set->is_bitset();
  const auto flip = [this](Ordinal ordinal) {
    if (ordinal / 64U < scores_.members_.size())
      scores_.members_[ordinal / 64U] ^= std::uint64_t{1} << (ordinal % 64);
  };
  if (!is_bitset) holders.for_each(flip);
  const std::span<const std::uint64_t> members =
      is_bitset ? set->words() : std::span<const std::uint64_t>(scores_.members_);
  const std::size_t begin = first_word_;
  const std::size_t end = end_word_;
  first_word_ = scores_.active_.size();
  end_word_ = 0;
  for (std::size_t word = begin; word < end; ++word) {
    const std::uint64_t active = scores_.active_[word];
    std::uint64_t gone = active & ~(word < members.size() ? members[word] : 0);
    for (; gone != 0; gone &= gone - 1) {
      leave(static_cast<Ordinal>(word * 64 + static_cast<std::size_t>(std::countr_zero(gone))), holders,
            block);
    }
    if (scores_.active_[word] == 0) continue;
    first_word_ = std::min(first_word_, word);
    end_word_ = std::max(end_word_, word + 1);
  }
  if (!is_bitset) holders.for_each(flip);
}

void PrefixWalk::finish(std::uint32_t blocks) {
  for (std::size_t word = first_word_; word < end_word_; ++word) {
    for (std::uint64_t rest = scores_.active_[word]; rest != 0; rest &= rest - 1) {
      const std::size_t ordinal = word * 64 + static_cast<std::size_t>(std::countr_zero(rest));
      close(scores_.row_of_slot_[ranks_.ordinals[ordinal].slot], blocks);
    }
  }
  active_ranks_ = 0;
}

}  // namespace handoff::epp
