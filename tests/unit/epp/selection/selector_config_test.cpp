#include "epp/selection/selector_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace handoff::epp {
namespace {

// The published defaults of KvRouterConfig.
TEST(SelectorConfig, HasThePublishedDefaults) {
  const SelectorConfig config;
  EXPECT_EQ(config.cost.overlap_score_credit, 1.0);
  EXPECT_EQ(config.cost.overlap_score_credit_decay, 0.0);
  EXPECT_EQ(config.cost.prefill_load_scale, 1.0);
  EXPECT_EQ(config.cost.host_cache_hit_weight, 0.75);
  EXPECT_EQ(config.cost.disk_cache_hit_weight, 0.25);
  EXPECT_EQ(config.cost.shared_cache_multiplier, 0.0);
  EXPECT_EQ(config.cost.decode_active_request_weight, 0.0);
  EXPECT_EQ(config.cost.temperature, 0.0);
  EXPECT_EQ(config.router_queue_threshold, std::nullopt);
  EXPECT_EQ(config.router_queue_policy, QueueOrder::kFcfs);
  EXPECT_EQ(config.active_request_expiry.count(), 300);
  EXPECT_EQ(config.overlap_refresh_after.count(), 10);
  EXPECT_EQ(config.router_ttl.count(), 120);
  EXPECT_EQ(config.affinity.mode, AffinityMode::kOff);
  EXPECT_EQ(config.affinity.max_sessions, 65536u);
  EXPECT_TRUE(config.validate().empty());
}

TEST(SelectorConfig, RolesAreDeclaredOptionSets) {
  const RoleOptions aggregated = role_options(SelectorRole::kAggregated);
  EXPECT_TRUE(aggregated.track_prefill_tokens && aggregated.track_blocks && aggregated.assume_kv_reuse &&
              aggregated.use_overlap);
  const RoleOptions prefill = role_options(SelectorRole::kPrefill);
  EXPECT_TRUE(prefill.track_prefill_tokens && prefill.use_overlap);
  EXPECT_FALSE(prefill.track_blocks);
  const RoleOptions decode = role_options(SelectorRole::kDecode);
  EXPECT_TRUE(decode.track_blocks);
  EXPECT_FALSE(decode.track_prefill_tokens || decode.assume_kv_reuse || decode.use_overlap);
}

TEST(SelectorConfig, NamesEveryProblem) {
  struct Row {
    const char* what;
    std::function<void(SelectorConfig&)> spoil;
  };
  const Row rows[] = {
      {"overlap_score_credit", [](auto& c) { c.cost.overlap_score_credit = -1; }},
      {"overlap_score_credit_decay", [](auto& c) { c.cost.overlap_score_credit_decay = -1; }},
      {"prefill_load_scale", [](auto& c) { c.cost.prefill_load_scale = 1.0 / 0.0; }},
      {"host_cache_hit_weight", [](auto& c) { c.cost.host_cache_hit_weight = 1.5; }},
      {"disk_cache_hit_weight", [](auto& c) { c.cost.disk_cache_hit_weight = -0.1; }},
      {"shared_cache_multiplier", [](auto& c) { c.cost.shared_cache_multiplier = 2; }},
      {"router_temperature", [](auto& c) { c.cost.temperature = -1; }},
      {"router_queue_threshold", [](auto& c) { c.router_queue_threshold = -0.5; }},
      {"session affinity ttl", [](auto& c) { c.affinity.ttl = std::chrono::seconds(0); }},
      {"session affinity ttl", [](auto& c) { c.affinity.ttl = std::chrono::seconds(31536001); }},
      {"active_request_expiry", [](auto& c) { c.active_request_expiry = std::chrono::seconds(0); }},
      {"defined twice",
       [](auto& c) {
         c.policy.default_policy_family = "x";
         c.policy.policy_classes = {PolicyClass{.name = "x"}, PolicyClass{.name = "x"}};
       }},
      {"default_policy_family", [](auto& c) { c.policy.policy_classes = {PolicyClass{.name = "x"}}; }},
      {"quantum",
       [](auto& c) {
         c.policy.default_policy_family = "x";
         c.policy.policy_classes = {PolicyClass{.name = "x", .quantum = 0}};
       }},
      {"min_tokens must start at 0",
       [](auto& c) {
         c.policy.uncached_isl_buckets = {{5, "a"}};
       }},
      {"has no class for bucket",
       [](auto& c) {
         c.policy.uncached_isl_buckets = {{0, "short"}, {100, "long"}};
         c.policy.default_policy_family = "f";
         c.policy.policy_classes = {PolicyClass{.name = "x", .policy_family = "f", .cache_bucket = "short"}};
       }},
  };
  for (const Row& row : rows) {
    SelectorConfig config;
    row.spoil(config);
    EXPECT_THAT(config.validate(), testing::Contains(testing::HasSubstr(row.what))) << row.what;
  }
  SelectorConfig many;
  many.cost.overlap_score_credit = -1;
  many.cost.temperature = -1;
  EXPECT_EQ(many.validate().size(), 2u);
}

// Families x uncached-length buckets give the class; a name of an explicit class goes past that; unknown
// names are the default family.
TEST(PolicyProfile, FindsTheClassOfARequest) {
  PolicyProfile profile;
  profile.default_policy_family = "interactive";
  profile.uncached_isl_buckets = {{0, "short"}, {1000, "long"}};
  profile.policy_classes = {
      PolicyClass{.name = "i-short", .policy_family = "interactive", .cache_bucket = "short"},
      PolicyClass{.name = "i-long", .policy_family = "interactive", .cache_bucket = "long"},
      PolicyClass{.name = "b-short", .policy_family = "batch", .cache_bucket = "short"},
      PolicyClass{.name = "b-long", .policy_family = "batch", .cache_bucket = "long"},
      PolicyClass{.name = "vip"},
  };
  SelectorConfig config;
  config.policy = profile;
  ASSERT_TRUE(config.validate().empty());
  const auto found = [&](std::string_view name, std::uint64_t uncached) {
    return profile.policy_classes[profile.classify(name, uncached)].name;
  };
  EXPECT_EQ(found("", 0), "i-short");
  EXPECT_EQ(found("", 999), "i-short");
  EXPECT_EQ(found("", 1000), "i-long");
  EXPECT_EQ(found("batch", 10), "b-short");
  EXPECT_EQ(found("batch", 5000), "b-long");
  EXPECT_EQ(found("vip", 5000), "vip");
  EXPECT_EQ(found("b-long", 10), "i-short");  // a class of a family is no explicit class
  EXPECT_EQ(found("unknown", 5000), "i-long");
}

TEST(SelectorConfig, OneDefaultClassWithoutAProfile) {
  SelectorConfig config;
  EXPECT_FALSE(config.profile_for("m").queues());
  config.router_queue_threshold = 0.0;
  config.router_queue_policy = QueueOrder::kWspt;
  const PolicyProfile profile = config.profile_for("m");
  ASSERT_EQ(profile.policy_classes.size(), 1u);
  EXPECT_EQ(profile.policy_classes[0].name, "default");
  EXPECT_EQ(profile.policy_classes[0].quantum, 1u);
  EXPECT_EQ(profile.policy_classes[0].prefill_busy_threshold_frac, 0.0);
  EXPECT_EQ(profile.policy_classes[0].queue_policy, QueueOrder::kWspt);
  EXPECT_FALSE(profile.policy_classes[0].request_queue_limit_per_worker);
}

TEST(SelectorConfig, AModelsProfileReplacesTheRootOneWholesale) {
  SelectorConfig config;
  config.policy.default_policy_family = "root";
  config.policy.policy_classes = {PolicyClass{.name = "root"}, PolicyClass{.name = "other"}};
  PolicyProfile own;
  own.default_policy_family = "own";
  own.policy_classes = {PolicyClass{.name = "own"}};
  config.model_policies.emplace("special", own);
  ASSERT_TRUE(config.validate().empty());
  EXPECT_EQ(config.profile_for("special").policy_classes.size(), 1u);
  EXPECT_EQ(config.profile_for("any").policy_classes.size(), 2u);
}

}  // namespace
}  // namespace handoff::epp
