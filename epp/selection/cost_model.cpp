#include "epp/selection/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "epp/selection/mix_hash.hpp"

namespace handoff::epp {
namespace {

// Separates the temperature draw from the tie-break, which use the same request hash.
constexpr std::uint64_t kDrawDomain = 0x74656d7065726174ULL;

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
