#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "epp/selection/cost_model.hpp"
#include "epp/selection/select_request.hpp"

namespace handoff::epp {

// A validated request with everything that can be computed without the partition's lock: hashes, overlaps,
// resolved weights. Owns all it refers to, so that it can wait.
struct PreparedRequest {
  SelectRequest request;  // its prompt is consumed
  bool book = false;

  std::vector<std::uint64_t> sequence_hashes;
  std::uint64_t isl_tokens = 0;
  // Blocks that the load counts: one per hash when prefixes may be shared, else just so many.
  std::uint64_t tracked_blocks = 0;
  bool shares_blocks = false;

  CostQuery cost;
  double temperature = 0.0;
  std::uint64_t request_hash = 0;

  std::vector<RankOverlap> overlaps;
  SteadyTime overlaps_at;
};

}  // namespace handoff::epp
