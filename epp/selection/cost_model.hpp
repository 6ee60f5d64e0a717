#pragma once

#include <algorithm>
#include <cmath>
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
inline std::uint64_t cached_tokens(const CostQuery& query, const CostInputs& inputs) {
  // The device tier counts in full here: the credit is a preference, this is an amount of work.
  const double blocks = inputs.device_blocks + query.weights.host_cache_hit_weight * inputs.host_blocks +
                        query.weights.disk_cache_hit_weight * inputs.disk_blocks;
  const auto tokens = static_cast<std::uint64_t>(std::llround(std::max(0.0, blocks * query.block_size)));
  return std::min(tokens, query.isl_tokens);
}

// What is left of the device credit on a rank that is busier than the least busy candidate.
inline double overlap_decay(const CostQuery& query, const CostInputs& inputs,
                            std::uint64_t min_active_prefill) {
  if (!query.track_prefill || query.weights.overlap_score_credit_decay == 0.0) return 1.0;
  const std::uint64_t above = inputs.active_prefill_tokens > min_active_prefill
                                  ? inputs.active_prefill_tokens - min_active_prefill
                                  : 0;
  const double block_size = query.block_size;
  const double request_blocks = std::ceil(static_cast<double>(query.isl_tokens) / block_size);
  if (request_blocks == 0.0) return 1.0;
  return 1.0 / (1.0 + query.weights.overlap_score_credit_decay * (static_cast<double>(above) / block_size) /
                          request_blocks);
}

// `min_active_prefill` is the least pending prefill among the eligible candidates; the decay of the overlap
// credit measures from it. Here and not in the .cpp file, because it runs once per candidate and request.
inline CostTerms evaluate_cost(const CostQuery& query, const CostInputs& inputs,
                               std::uint64_t min_active_prefill) {
  const CostConfig& weights = query.weights;
  CostTerms terms;
  terms.credit =
      weights.overlap_score_credit * overlap_decay(query, inputs, min_active_prefill) * inputs.device_blocks +
      weights.host_cache_hit_weight * inputs.host_blocks +
      weights.disk_cache_hit_weight * inputs.disk_blocks +
      weights.shared_cache_multiplier * inputs.shared_blocks;
  terms.decode_blocks = static_cast<double>(inputs.active_decode_blocks) + inputs.additional_active_blocks;
  const double requests = weights.decode_active_request_weight * inputs.active_requests;

  if (query.decode_role && !query.track_prefill && weights.overlap_score_credit > 0.0) {
    terms.cost = std::max(0.0, terms.decode_blocks - terms.credit) + requests;
  } else {
    if (query.track_prefill) {
      const auto raw_tokens = static_cast<double>(inputs.active_prefill_tokens + query.isl_tokens);
      terms.prefill_blocks = std::max(0.0, raw_tokens / query.block_size - terms.credit);
    }
    terms.cost = weights.prefill_load_scale * terms.prefill_blocks + terms.decode_blocks + requests;
  }
  if (inputs.taint_preference != 0.0) {
    terms.taint_multiplier = std::exp(-std::tanh(inputs.taint_preference));
    terms.cost *= terms.taint_multiplier;
  }
  return terms;
}

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
