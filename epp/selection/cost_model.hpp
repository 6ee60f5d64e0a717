#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "epp/selection/selector_config.hpp"

namespace handoff::epp {

// The cost of sending one request to one rank, in blocks of work; lower is better. Pure functions: the
// formula is Dynamo's (documented in the folder's README), so that a deployment's tuned weights keep their
// meaning.

// What is the same for every candidate of a request.
struct CostQuery {
  std::uint32_t block_size = 1;
  std::uint64_t isl_tokens = 0;
  bool track_prefill = true;
  bool decode_role = false;
  CostConfig weights;
};

struct CostInputs {
  std::uint64_t active_prefill_tokens = 0;
  std::uint64_t active_decode_blocks = 0;
  std::uint32_t active_requests = 0;
  std::uint32_t additional_active_blocks = 0;  // blocks the request would add to those active there
  std::uint32_t device_blocks = 0;
  std::uint32_t host_blocks = 0;    // beyond the device prefix
  std::uint32_t disk_blocks = 0;    // beyond the host prefix, external ones included
  std::uint32_t shared_blocks = 0;  // shared-cache hits beyond the device prefix
  double taint_preference = 0.0;    // sum of the preferred taints' weights that the worker has
};

struct CostTerms {
  double credit = 0.0;
  double prefill_blocks = 0.0;
  double decode_blocks = 0.0;
  double taint_multiplier = 1.0;
  double cost = 0.0;
};

// Prompt tokens that need no computing there, each tier at its weight.
std::uint64_t cached_tokens(const CostQuery& query, const CostInputs& inputs);

// `min_active_prefill` is the least pending prefill among the eligible candidates; the decay of the overlap
// credit measures from it.
CostTerms evaluate_cost(const CostQuery& query, const CostInputs& inputs, std::uint64_t min_active_prefill);

struct Pick {
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::size_t index = kNone;
  std::size_t tied = 0;      // candidates with exactly the lowest cost
  double probability = 1.0;  // that a draw gives this index; 1 at temperature 0
};

// Temperature 0: the lowest cost; exactly equal costs are decided by the highest mix of the request's hash
// and the candidate's tie key, which is as fair as a draw and repeats for an equal request id. Above 0: a
// draw with p_i ~ exp(-(c_i - min) / ((max - min) * T)), its random number again a function of the request's
// hash.
Pick pick_candidate(std::span<const double> costs, std::span<const std::uint64_t> tie_keys,
                    std::uint64_t request_hash, double temperature);

}  // namespace handoff::epp
