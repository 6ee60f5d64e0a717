#include "epp/selection/selector_config.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace handoff::epp {
namespace {

class Problems {
 public:
  void require(bool holds, std::string text) {
    if (!holds) found_.push_back(std::move(text));
  }
  void non_negative(double value, const char* name) {
    require(std::isfinite(value) && value >= 0.0, std::string(name) + " must be finite and >= 0");
  }
  void non_negative(const std::optional<double>& value, const char* name) {
    if (value) non_negative(*value, name);
  }
  void fraction(double value, const char* name) {
    require(value >= 0.0 && value <= 1.0, std::string(name) + " must be in [0, 1]");
  }
  std::vector<std::string> take() { return std::move(found_); }

 private:
  std::vector<std::string> found_;
};

void check_class(const PolicyClass& policy_class, Problems& problems) {
  const std::string name = "policy class \"" + policy_class.name + "\"";
  problems.require(policy_class.quantum > 0, name + ": quantum must be > 0");
  problems.require(policy_class.policy_family.empty() == policy_class.cache_bucket.empty(),
                   name + ": policy_family and cache_bucket go together");
  if (policy_class.prefill_busy_threshold_frac) {
    problems.non_negative(*policy_class.prefill_busy_threshold_frac,
                          (name + ": prefill_busy_threshold_frac").c_str());
  }
}

void check_buckets(const PolicyProfile& profile, Problems& problems) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < profile.uncached_isl_buckets.size(); ++i) {
    const auto& bucket = profile.uncached_isl_buckets[i];
    problems.require(names.insert(bucket.bucket).second && !bucket.bucket.empty(),
                     "uncached_isl_buckets: names must be unique and not empty");
    const bool in_order =
        i == 0 ? bucket.min_tokens == 0 : bucket.min_tokens > profile.uncached_isl_buckets[i - 1].min_tokens;
    problems.require(in_order, "uncached_isl_buckets: min_tokens must start at 0 and ascend");
  }
}

void check_profile(const PolicyProfile& profile, Problems& problems) {
  check_buckets(profile, problems);
  std::set<std::string> names;
  std::set<std::string> families;
  std::set<std::pair<std::string, std::string>> cells;
  std::size_t nameless = 0;
  for (const auto& policy_class : profile.policy_classes) {
    check_class(policy_class, problems);
    if (policy_class.name.empty()) {
      ++nameless;
    } else {
      problems.require(names.insert(policy_class.name).second,
                       "policy class \"" + policy_class.name + "\" is defined twice");
    }
    if (policy_class.policy_family.empty()) continue;
    families.insert(policy_class.policy_family);
    problems.require(cells.emplace(policy_class.policy_family, policy_class.cache_bucket).second,
                     "policy family \"" + policy_class.policy_family + "\" has two classes for one bucket");
  }
  problems.require(nameless == 0, "a policy class needs a name");
  for (const auto& family : families) {
    for (const auto& bucket : profile.uncached_isl_buckets) {
      problems.require(cells.contains({family, bucket.bucket}),
                       "policy family \"" + family + "\" has no class for bucket \"" + bucket.bucket + "\"");
    }
  }
  if (profile.policy_classes.empty()) return;
  const bool has_default =
      families.contains(profile.default_policy_family) || names.contains(profile.default_policy_family);
  problems.require(has_default, "default_policy_family names no family or class");
  problems.require(families.empty() || !profile.uncached_isl_buckets.empty(),
                   "policy families need uncached_isl_buckets");
}

}  // namespace

std::string_view to_string(SelectorRole role) {
  switch (role) {
    case SelectorRole::kAggregated:
      return "aggregated";
    case SelectorRole::kPrefill:
      return "prefill";
    case SelectorRole::kDecode:
      return "decode";
  }
  return "unknown";
}

RoleOptions role_options(SelectorRole role) {
  switch (role) {
    case SelectorRole::kAggregated:
      return RoleOptions{};
    case SelectorRole::kPrefill:
      return RoleOptions{.track_blocks = false};
    case SelectorRole::kDecode:
      return RoleOptions{.track_prefill_tokens = false, .assume_kv_reuse = false, .use_overlap = false};
  }
  return RoleOptions{};
}

bool PolicyProfile::queues() const {
  for (const auto& policy_class : policy_classes) {
    if (policy_class.queues()) return true;
  }
  return false;
}

bool PolicyProfile::has_closed_class() const {
  return std::any_of(policy_classes.begin(), policy_classes.end(),
                     [](const PolicyClass& each) { return each.is_closed(); });
}

std::size_t PolicyProfile::classify(std::string_view requested, std::uint64_t uncached_isl) const {
  std::string_view bucket;
  for (const auto& entry : uncached_isl_buckets) {
    if (uncached_isl >= entry.min_tokens) bucket = entry.bucket;
  }
  std::optional<std::size_t> fallback;
  std::optional<std::size_t> by_family;
  for (std::size_t i = 0; i < policy_classes.size(); ++i) {
    const auto& candidate = policy_classes[i];
    const bool is_explicit = candidate.policy_family.empty();
    if (is_explicit && candidate.name == requested) return i;
    if (is_explicit && candidate.name == default_policy_family) fallback = i;
    if (is_explicit || candidate.cache_bucket != bucket) continue;
    if (candidate.policy_family == requested) by_family = i;
    if (candidate.policy_family == default_policy_family) fallback = i;
  }
  if (by_family) return *by_family;
  return fallback.value_or(0);
}

SelectorConfig SelectorConfig::for_role(SelectorRole role) {
  SelectorConfig config;
  config.role = role;
  config.options = role_options(role);
  return config;
}

std::vector<std::string> SelectorConfig::validate() const {
  Problems problems;
  problems.non_negative(cost.overlap_score_credit, "overlap_score_credit");
  problems.non_negative(cost.overlap_score_credit_decay, "overlap_score_credit_decay");
  problems.non_negative(cost.prefill_load_scale, "prefill_load_scale");
  problems.non_negative(cost.decode_active_request_weight, "decode_active_request_weight");
  problems.non_negative(cost.temperature, "router_temperature");
  problems.fraction(cost.host_cache_hit_weight, "host_cache_hit_weight");
  problems.fraction(cost.disk_cache_hit_weight, "disk_cache_hit_weight");
  problems.fraction(cost.shared_cache_multiplier, "shared_cache_multiplier");
  problems.non_negative(overload.active_decode_blocks_frac, "active_decode_blocks_threshold");
  problems.non_negative(overload.active_prefill_tokens_frac, "active_prefill_tokens_threshold_frac");
  problems.non_negative(decode_busy_threshold, "decode_busy_threshold");
  problems.non_negative(router_queue_threshold, "router_queue_threshold");
  check_profile(policy, problems);
  for (const auto& [model, profile] : model_policies) check_profile(profile, problems);
  problems.require(affinity.ttl.count() >= 1 && affinity.ttl.count() <= 31536000,
                   "session affinity ttl must be in 1..31536000 s");
  problems.require(affinity.mode == AffinityMode::kOff || affinity.max_sessions > 0,
                   "session affinity needs room for at least one session");
  problems.require(active_request_expiry.count() > 0, "active_request_expiry must be > 0");
  problems.require(overlap_refresh_after.count() >= 0, "overlap_refresh_after must be >= 0");
  problems.require(active_sequence_stride >= 1, "active_sequence_stride must be >= 1");
  problems.require(!tracking_key || !tracking_key->key_id.empty(), "router_tracking_key_id is required");
  problems.require(selection_cache.ttl.count() > 0, "selection_cache_ttl must be > 0");
  problems.require(router_ttl.count() >= 0, "router_ttl must be >= 0");
  problems.require(limits.max_ranks < UINT32_MAX, "max_ranks is too large");
  return problems.take();
}

PolicyProfile SelectorConfig::profile_for(const std::string& model_name) const {
  const auto own = model_policies.find(model_name);
  PolicyProfile profile = own == model_policies.end() ? policy : own->second;
  if (profile.policy_classes.empty()) {
    PolicyClass only;
    only.queue_policy = router_queue_policy;
    only.prefill_busy_threshold_frac = router_queue_threshold;
    profile.default_policy_family = only.name;
    profile.policy_classes.push_back(std::move(only));
  }
  return profile;
}

}  // namespace handoff::epp
