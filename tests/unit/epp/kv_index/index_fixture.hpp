#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_index.hpp"

namespace handoff::epp::test {

// A prompt of `blocks` blocks, told apart by `id`: its local hashes, and what the index knows its prefixes
// by.
struct Prompt {
  explicit Prompt(std::uint64_t id, std::size_t blocks) {
    for (std::size_t i = 0; i < blocks; ++i) {
      local.push_back(chain_hash(id, i));
      sequence.push_back(i == 0 ? local[0] : chain_hash(sequence.back(), local[i]));
      engine.push_back(chain_hash(0xE, sequence[i]));
    }
  }

  StoredBlocks slice(std::size_t from, std::size_t count) const {
    StoredBlocks blocks;
    if (from != 0) blocks.parent_engine_hash = engine[from - 1];
    blocks.engine_hashes = std::span(engine).subspan(from, count);
    blocks.local_hashes = std::span(local).subspan(from, count);
    return blocks;
  }
  StoredBlocks all() const { return slice(0, local.size()); }

  std::vector<std::uint64_t> local;
  std::vector<std::uint64_t> sequence;
  std::vector<std::uint64_t> engine;
};

inline std::uint32_t device_depth(const BlockIndex& index, const std::vector<std::uint64_t>& request,
                                  WorkerRank rank, SteadyTime now = {}) {
  OverlapScores scores;
  index.match_prefix(request, now, scores);
  const RankOverlap* row = scores.find(rank);
  return row == nullptr ? 0 : row->device;
}

}  // namespace handoff::epp::test
