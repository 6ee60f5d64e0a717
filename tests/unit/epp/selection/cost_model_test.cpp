#include "epp/selection/cost_model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "epp/selection/mix_hash.hpp"

namespace handoff::epp {
namespace {

CostQuery query(std::uint64_t isl = 160) {
  CostQuery made;
  made.block_size = 16;
  made.isl_tokens = isl;
  return made;
}

struct Row {
  const char* why;
  CostQuery query;
  CostInputs inputs;
  std::uint64_t min_active_prefill;
  double cost;
};

CostQuery with(CostConfig weights, bool track_prefill = true, bool decode_role = false) {
  CostQuery made = query();
  made.weights = weights;
  made.track_prefill = track_prefill;
  made.decode_role = decode_role;
  return made;
}

// Worked out by hand from the published formula:
// cost = scale * max(0, (active_prefill + isl) / bs - credit) + active + additional + weight * requests.
TEST(CostModel, FollowsTheFormula) {
  const Row rows[] = {
      {"idle worker: its own prompt", query(), {.additional_active_blocks = 10}, 0, 10.0 + 10.0},
      {"device blocks are credited in full",
       query(),
       {.additional_active_blocks = 10, .device_blocks = 4},
       0,
       6.0 + 10.0},
      {"host and disk are extensions at 0.75 and 0.25",
       query(),
       {.device_blocks = 2, .host_blocks = 4, .disk_blocks = 4},
       0,
       10.0 - 2.0 - 3.0 - 1.0},
      {"pending prefill counts in blocks", query(), {.active_prefill_tokens = 80}, 0, 15.0},
      {"active blocks count", query(), {.active_decode_blocks = 7, .additional_active_blocks = 3}, 0, 20.0},
      {"scale of the prefill part", with({.prefill_load_scale = 2.0}), {.active_decode_blocks = 1}, 0, 21.0},
      {"the prefill part is never negative",
       with({.overlap_score_credit = 3.0}),
       {.active_decode_blocks = 5, .device_blocks = 10},
       0,
       5.0},
      {"weight of active requests",
       with({.decode_active_request_weight = 0.5}),
       {.active_requests = 4},
       0,
       12.0},
      {"shared cache",
       with({.shared_cache_multiplier = 0.5}),
       {.device_blocks = 2, .shared_blocks = 6},
       0,
       10.0 - 2.0 - 3.0},
      {"decay lowers the device credit only: 1 / (1 + 0.5 * (160 / 16) / 10) = 2/3",
       with({.overlap_score_credit_decay = 0.5}),
       {.active_prefill_tokens = 160, .device_blocks = 3, .host_blocks = 4},
       0,
       20.0 - 2.0 - 3.0},
      {"decay measures from the least loaded candidate",
       with({.overlap_score_credit_decay = 0.5}),
       {.active_prefill_tokens = 160, .device_blocks = 3},
       160,
       20.0 - 3.0},
      {"decay never rises above the least loaded one",
       with({.overlap_score_credit_decay = 0.5}),
       {.active_prefill_tokens = 16, .device_blocks = 3},
       160,
       11.0 - 3.0},
      {"without prefill tracking only blocks count",
       with({}, false),
       {.active_prefill_tokens = 999, .active_decode_blocks = 7, .additional_active_blocks = 3},
       0,
       10.0},
      {"decode role with overlap credit prefers warm workers",
       with({.decode_active_request_weight = 2.0}, false, true),
       {.active_decode_blocks = 7, .active_requests = 1, .additional_active_blocks = 3, .device_blocks = 4},
       0,
       6.0 + 2.0},
      {"decode role: the credit cannot eat the request term",
       with({.decode_active_request_weight = 2.0}, false, true),
       {.active_decode_blocks = 1, .active_requests = 1, .device_blocks = 4},
       0,
       2.0},
      {"plain decode: load only",
       with({.overlap_score_credit = 0.0}, false, true),
       {.active_decode_blocks = 7, .additional_active_blocks = 3, .device_blocks = 4},
       0,
       10.0},
      {"a preferred taint multiplies by exp(-tanh(sum))",
       query(),
       {.taint_preference = 0.5},
       0,
       10.0 * std::exp(-std::tanh(0.5))},
      {"an avoided taint raises the cost",
       query(),
       {.taint_preference = -1.0},
       0,
       10.0 * std::exp(std::tanh(1.0))},
  };
  for (const Row& row : rows) {
    EXPECT_DOUBLE_EQ(evaluate_cost(row.query, row.inputs, row.min_active_prefill).cost, row.cost) << row.why;
  }
}

TEST(CostModel, CachedTokensIgnoreTheCreditAndItsDecay) {
  EXPECT_EQ(cached_tokens(with({.overlap_score_credit = 0.0}), {.device_blocks = 4}), 64u);
  EXPECT_EQ(cached_tokens(query(), {.device_blocks = 2, .host_blocks = 4, .disk_blocks = 4}),
            32u + 48u + 16u);
  EXPECT_EQ(cached_tokens(query(20), {.device_blocks = 4}), 20u);
  // round(0.25 * 1 block of 10 tokens) = round(2.5)
  CostQuery odd = query();
  odd.block_size = 10;
  EXPECT_EQ(cached_tokens(odd, {.disk_blocks = 1}), 3u);
}

TEST(PickCandidate, TakesTheLowestCost) {
  const std::vector<double> costs{3.0, 1.0, 2.0};
  const std::vector<std::uint64_t> keys{1, 2, 3};
  for (std::uint64_t request = 0; request < 100; ++request) {
    EXPECT_EQ(pick_candidate(costs, keys, request, 0.0).index, 1u);
  }
  EXPECT_EQ(pick_candidate({}, {}, 1, 0.0).index, Pick::kNone);
}

TEST(PickCandidate, BreaksTiesByRequestAndWorkerAlone) {
  const std::vector<std::uint64_t> keys{11, 22, 33, 44};
  const std::vector<double> costs{5.0, 5.0, 9.0, 5.0};
  std::map<std::uint64_t, int> wins;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const std::uint64_t request = hash_text("request-" + std::to_string(i));
    const Pick pick = pick_candidate(costs, keys, request, 0.0);
    EXPECT_EQ(pick.tied, 3u);
    ++wins[keys[pick.index]];
    // Another order of the candidates, the same worker.
    const std::vector<std::uint64_t> turned_keys{44, 33, 11, 22};
    const std::vector<double> turned_costs{5.0, 9.0, 5.0, 5.0};
    EXPECT_EQ(turned_keys[pick_candidate(turned_costs, turned_keys, request, 0.0).index], keys[pick.index]);
  }
  EXPECT_EQ(wins.count(33), 0u);
  // Fair among the tied: 1000 each, with a standard deviation of 26.
  for (const auto key : {11u, 22u, 44u}) EXPECT_NEAR(wins[key], 1000, 150) << key;
}

// p_i ~ exp(-(c_i - min) / ((max - min) * T)): costs 0, 5, 10 at T = 0.5 weigh 1, e^-1, e^-2.
TEST(PickCandidate, DrawsWithTheTemperature) {
  const std::vector<double> costs{0.0, 5.0, 10.0};
  const std::vector<std::uint64_t> keys{1, 2, 3};
  const double total = 1.0 + std::exp(-1.0) + std::exp(-2.0);
  std::vector<int> wins(3, 0);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const Pick pick = pick_candidate(costs, keys, hash_text(std::to_string(i)), 0.5);
    ++wins[pick.index];
    EXPECT_DOUBLE_EQ(pick.probability, std::exp(-static_cast<double>(pick.index)) / total);
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_NEAR(wins[static_cast<std::size_t>(i)], kDraws * std::exp(-i) / total, 300);
}

TEST(PickCandidate, DrawsUniformlyAmongEqualCosts) {
  const std::vector<double> costs{4.0, 4.0};
  const std::vector<std::uint64_t> keys{1, 2};
  int first = 0;
  for (int i = 0; i < 10000; ++i) {
    const Pick pick = pick_candidate(costs, keys, hash_text(std::to_string(i)), 1.0);
    EXPECT_DOUBLE_EQ(pick.probability, 0.5);
    first += pick.index == 0 ? 1 : 0;
  }
  EXPECT_NEAR(first, 5000, 300);
}

TEST(PickCandidate, SurvivesARangeThatOverflows) {
  const std::vector<double> costs{-1.5e308, 1.5e308};
  const std::vector<std::uint64_t> keys{1, 2};
  // Divided by the larger magnitude: -1 and 1, so e^0 against e^(-1/T).
  const Pick pick = pick_candidate(costs, keys, 7, 1.0);
  EXPECT_TRUE(std::isfinite(pick.probability));
  EXPECT_NEAR(pick.probability, pick.index == 0 ? 1 / (1 + std::exp(-1.0)) : 1 - 1 / (1 + std::exp(-1.0)),
              1e-12);
}

}  // namespace
}  // namespace handoff::epp
