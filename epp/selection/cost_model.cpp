#include "epp/selection/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "epp/selection/mix_hash.hpp"

namespace handoff::epp {
namespace {

// Separates the temperature draw from the tie-break, which use the same request hash.
constexpr std::uint64_t kDrawDomain = 0x74656d7065726174ULL;

double overlap_decay(const CostQuery& query, const CostInputs& inputs, std::uint64_t min_active_prefill) {
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

Pick pick_lowest(std::span<const double> costs, std::span<const std::uint64_t> tie_keys,
                 std::uint64_t request_hash) {
  Pick pick;
  std::uint64_t best_key = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (pick.index != Pick::kNone && costs[i] > costs[pick.index]) continue;
    const std::uint64_t key = mix64(request_hash ^ tie_keys[i]);
    const bool lower = pick.index == Pick::kNone || costs[i] < costs[pick.index];
    pick.tied = lower ? 1 : pick.tied + 1;
    if (lower || key > best_key) {
      pick.index = i;
      best_key = key;
    }
  }
  return pick;
}

std::vector<double> draw_weights(std::span<const double> costs, double temperature) {
  auto [low, high] = std::minmax_element(costs.begin(), costs.end());
  double min = *low;
  double range = *high - *low;
  double scale = 1.0;
  if (!std::isfinite(range)) {
    // The difference overflowed, not the costs themselves.
    scale = std::max(std::abs(*low), std::abs(*high));
    min = *low / scale;
    range = *high / scale - min;
  }
  std::vector<double> weights(costs.size(), 1.0);
  if (range == 0.0) return weights;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    weights[i] = std::exp(-(costs[i] / scale - min) / (range * temperature));
  }
  return weights;
}

}  // namespace

std::uint64_t cached_tokens(const CostQuery& query, const CostInputs& inputs) {
  // The device tier counts in full here: the credit is a preference, this is an amount of work.
  const double blocks = inputs.device_blocks + query.weights.host_cache_hit_weight * inputs.host_blocks +
                        query.weights.disk_cache_hit_weight * inputs.disk_blocks;
  const auto tokens = static_cast<std::uint64_t>(std::llround(std::max(0.0, blocks * query.block_size)));
  return std::min(tokens, query.isl_tokens);
}

CostTerms evaluate_cost(const CostQuery& query, const CostInputs& inputs, std::uint64_t min_active_prefill) {
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

Pick pick_candidate(std::span<const double> costs, std::span<const std::uint64_t> tie_keys,
                    std::uint64_t request_hash, double temperature) {
  if (costs.empty()) return {};
  Pick lowest = pick_lowest(costs, tie_keys, request_hash);
  if (temperature <= 0.0 || costs.size() == 1) return lowest;

  const std::vector<double> weights = draw_weights(costs, temperature);
  double total = 0.0;
  for (const double weight : weights) total += weight;
  const double draw = unit_interval(mix64(request_hash ^ kDrawDomain)) * total;
  double cumulative = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    cumulative += weights[i];
    // Strictly greater: a draw of 0 must not give a candidate whose weight is 0.
    if (cumulative > draw) return {i, lowest.tied, weights[i] / total};
  }
  return lowest;  // rounding left the sum just below the draw
}

}  // namespace handoff::epp
