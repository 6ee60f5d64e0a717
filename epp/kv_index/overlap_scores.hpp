#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "epp/kv_index/worker_rank.hpp"

namespace handoff::epp {

// A registered rank of a BlockIndex: small and dense, so that tables can be arrays. Slots of removed ranks
// are used again.
using RankSlot = std::uint32_t;

// How much of a request's prefix one rank holds, in blocks. `device` counts from the first block; each
// further number is what that tier adds where the one before it ended. The sum is the longest prefix that the
// rank can serve without computing.
struct RankOverlap {
  WorkerRank rank;
  RankSlot slot = 0;
  std::uint32_t device = 0;
  std::uint32_t host = 0;
  std::uint32_t disk = 0;
  std::uint32_t external = 0;

  std::uint32_t total() const { return device + host + disk + external; }
};

// The answer of BlockIndex::match_prefix, and its scratch memory. Owned by the caller and made to be kept:
// after the first few requests a match allocates nothing. One thread at a time.
class OverlapScores {
 public:
  // Ranks that hold at least the first block, in no particular order.
  std::span<const RankOverlap> rows() const { return rows_; }

  // The rank's row, or null when it holds nothing. Constant time. `expected` guards against a slot that was
  // freed and given to another rank since the caller learned it.
  const RankOverlap* find(RankSlot slot, WorkerRank expected) const {
    if (slot >= row_of_slot_.size()) return nullptr;
    const std::uint32_t row = row_of_slot_[slot];
    // Entries of earlier matches are never wiped; a row that does not point back is one of them.
    if (row >= rows_.size() || rows_[row].slot != slot || rows_[row].rank != expected) return nullptr;
    return &rows_[row];
  }

  // The same by rank, in linear time: for tests, explanations and whoever has no slot.
  const RankOverlap* find(WorkerRank rank) const {
    for (const RankOverlap& row : rows_) {
      if (row.rank == rank) return &row;
    }
    return nullptr;
  }

  // How many blocks of the request the match asked about.
  std::uint32_t requested_blocks() const { return requested_blocks_; }

 private:
  friend class BlockIndex;
  friend class PrefixWalk;

  // Where a rank's walk stands: the ordinal it matches with, its tier, and since which block.
  struct Step {
    std::uint16_t ordinal = 0;
    Tier tier = Tier::device;
    std::uint32_t since = 0;
  };

  std::vector<RankOverlap> rows_;
  std::vector<Step> steps_;  // by row
  std::vector<std::uint32_t> row_of_slot_;
  std::vector<std::uint64_t> active_;   // bits: the ordinal that each still-matching rank matches with
  std::vector<std::uint64_t> members_;  // bits: holders of one block; zero between uses
  std::uint32_t requested_blocks_ = 0;
};

}  // namespace handoff::epp
