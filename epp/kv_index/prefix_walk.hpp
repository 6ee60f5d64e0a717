#pragma once

#include <cstdint>
#include <vector>

#include "epp/kv_index/holder_set.hpp"
#include "epp/kv_index/overlap_scores.hpp"
#include "epp/kv_index/rank_registry.hpp"

namespace handoff::epp {

// One match, block by block: who still holds everything so far, and in which tier. Lives on the stack of
// match_prefix; the memory is the OverlapScores'.
//
// Each rank walks on one of its ordinals ("active"). Where a block lacks it, the rank moves to the same or
// the next tier that has the block, never back to a faster one, and drops out when there is none.
class PrefixWalk {
 public:
  PrefixWalk(const RankSnapshot& ranks, SteadyTime now, OverlapScores& scores);

  // The holders of block 0.
  void start(HolderRef holders);
  // The holders of block `block`; call it only when they differ from those of the block before.
  void advance(HolderRef holders, std::uint32_t block);
  // After `blocks` blocks: closes the depths of all who are still in.
  void finish(std::uint32_t blocks);

  bool anyone_left() const { return active_ranks_ != 0; }

 private:
  bool is_usable(Ordinal ordinal) const;
  Ordinal next_ordinal(RankSlot slot, Tier from, HolderRef holders) const;
  void step_on(std::uint32_t row, Ordinal ordinal, std::uint32_t block);
  void close(std::uint32_t row, std::uint32_t block);
  void leave(Ordinal ordinal, HolderRef holders, std::uint32_t block);

  const RankSnapshot& ranks_;
  const SteadyTime now_;
  OverlapScores& scores_;
  std::size_t active_ranks_ = 0;
  std::size_t first_word_ = 0;  // active bits lie in [first_word_, end_word_)
  std::size_t end_word_ = 0;
};

}  // namespace handoff::epp
