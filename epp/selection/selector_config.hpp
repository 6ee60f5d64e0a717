#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace handoff::epp {

enum class SelectorRole : std::uint8_t { kAggregated, kPrefill, kDecode };
std::string_view to_string(SelectorRole role);

// What a selector of a role books and weighs. A role is only a name for one of these sets, so that no caller
// has to build a role out of per-request overrides.
struct RoleOptions {
  bool track_prefill_tokens = true;  // bookings carry pending prefill tokens
  bool track_blocks = true;          // bookings hold KV blocks
  bool assume_kv_reuse = true;       // equal prompt prefixes of running requests share blocks
  bool use_overlap = true;           // the KV index is kept, asked and weighed
};

// aggregated: everything. prefill: pending tokens, no blocks. decode: blocks and active requests, no prefill
// tokens, no overlap, no sharing (the blocks arrive by transfer).
RoleOptions role_options(SelectorRole role);

// Weights of the cost formula; names and defaults are those of Dynamo's KvRouterConfig.
struct CostConfig {
  double overlap_score_credit = 1.0;
  double overlap_score_credit_decay = 0.0;
  double prefill_load_scale = 1.0;
  double host_cache_hit_weight = 0.75;
  double disk_cache_hit_weight = 0.25;
  double shared_cache_multiplier = 0.0;
  double decode_active_request_weight = 0.0;
  double temperature = 0.0;
};

// Workers over any of these take no new request until their load falls. Unset thresholds never fire.
struct OverloadConfig {
  std::optional<double> active_decode_blocks_frac;  // of total_kv_blocks
  std::optional<std::uint64_t> active_prefill_tokens;
  std::optional<double> active_prefill_tokens_frac;  // of max_num_batched_tokens
  bool any() const {
    return active_decode_blocks_frac || active_prefill_tokens || active_prefill_tokens_frac;
  }
};

enum class QueueOrder : std::uint8_t { kFcfs, kLcfs, kWspt };

struct PolicyClass {
  std::string name = "default";
  std::string policy_family = {};  // empty together with cache_bucket: an explicit class, chosen by its name
  std::string cache_bucket = {};
  QueueOrder queue_policy = QueueOrder::kFcfs;
  std::uint64_t quantum = 1;  // uncached tokens per round of the deficit round robin
  std::optional<std::uint64_t> prefill_busy_threshold = std::nullopt;
  std::optional<double> prefill_busy_threshold_frac = std::nullopt;
  std::optional<std::uint64_t> request_queue_limit_per_worker = std::nullopt;
  std::optional<std::uint64_t> raw_isl_token_queue_limit_per_worker = std::nullopt;
  std::optional<std::uint64_t> cached_token_queue_limit_per_worker = std::nullopt;

  bool queues() const {
    return prefill_busy_threshold.has_value() || prefill_busy_threshold_frac.has_value();
  }
  // A limit of 0: no request of this class is taken, busy or not.
  bool is_closed() const {
    return request_queue_limit_per_worker == 0 || raw_isl_token_queue_limit_per_worker == 0 ||
           cached_token_queue_limit_per_worker == 0;
  }
};

struct UncachedIslBucket {
  std::uint64_t min_tokens = 0;
  std::string bucket;
};

// Which classes exist and how a request finds its own. Without any class there is one, "default", that queues
// only when router_queue_threshold is set.
struct PolicyProfile {
  std::string default_policy_family;
  std::vector<UncachedIslBucket> uncached_isl_buckets;  // ascending, the first from 0
  std::vector<PolicyClass> policy_classes;

  bool queues() const;
  bool has_closed_class() const;
  // `requested` names an explicit class or a family; anything else is the default family.
  std::size_t classify(std::string_view requested, std::uint64_t uncached_isl) const;
};

enum class AffinityMode : std::uint8_t { kOff, kSoft, kHard };
enum class AffinityLossRule : std::uint8_t { kRebind, kReject };

struct AffinityConfig {
  AffinityMode mode = AffinityMode::kOff;
  // Hard only: what happens when the bound worker cannot take the request.
  AffinityLossRule on_loss = AffinityLossRule::kRebind;
  std::chrono::seconds ttl{3600};
  std::size_t max_sessions = 65536;
};

// What select() remembers for a create_reservation() with nothing but the id. At a bound the oldest goes.
struct SelectionCacheConfig {
  std::chrono::seconds ttl{120};
  std::size_t max_entries = 4096;  // per partition; 0: nothing is remembered
  std::size_t max_bytes = std::size_t{256} << 20;
};

// Makes the identities of running requests' blocks secret (Dynamo's keyed-xxh3-v1): who sees them in booking
// facts can tell neither prompts nor equal prompts of another partition, salt or adapter. The KV index is not
// concerned. Replicas that exchange booking facts need the same key.
struct TrackingKey {
  std::string key_id;
  std::array<std::uint8_t, 32> key{};
};

// Bounds on what callers may hand in or make the service keep.
struct SelectionLimits {
  std::size_t max_workers = 16384;
  std::size_t max_ranks = 65536;
  std::size_t max_partitions = 1024;
  std::size_t max_reservations = 262144;
  std::size_t max_waiting = 65536;
  std::size_t max_prompt_tokens = 16U << 20;
  std::size_t max_prompt_blocks = 4U << 20;
  std::size_t max_tracked_blocks = 64U << 20;
  std::size_t max_id_bytes = 256;
  std::size_t max_text_bytes = 4096;
  std::size_t max_constraints = 256;
  std::size_t max_retired_ids = 65536;
  std::chrono::seconds retired_id_ttl{120};
};

struct SelectorConfig {
  SelectorRole role = SelectorRole::kAggregated;
  RoleOptions options = role_options(SelectorRole::kAggregated);
  CostConfig cost;
  OverloadConfig overload;
  bool use_kv_events = true;
  // Whether reported output counts. Dynamo's frontend has its own switch for reporting at all, off by
  // default; here who does not want it does not report.
  bool track_output_blocks = true;
  // Keeps one of so many block identities of a running request, so that the load takes less memory; prefixes
  // are then shared in units of so many blocks. Replicas need the same.
  std::uint32_t active_sequence_stride = 1;
  std::optional<TrackingKey> tracking_key;  // unset: public-xxh3-v1, the hashes of the KV index
  bool kv_fetch_hints = false;              // bookings may say from whom to fetch; needs memory in the index
  std::optional<double> decode_busy_threshold;   // for Selection::decode_busy
  std::optional<double> router_queue_threshold;  // of max_num_batched_tokens; unset: no queueing
  QueueOrder router_queue_policy = QueueOrder::kFcfs;
  PolicyProfile policy;                                 // root profile
  std::map<std::string, PolicyProfile> model_policies;  // by model name, instead of the root profile
  AffinityConfig affinity;
  SelectionCacheConfig selection_cache;
  std::chrono::seconds active_request_expiry{300};
  std::chrono::seconds overlap_refresh_after{10};  // 0: never
  std::chrono::seconds router_ttl{120};            // life of predicted index entries; 0: none are made
  SelectionLimits limits;

  static SelectorConfig for_role(SelectorRole role);

  // Every problem found, one line each; empty when the configuration can be used.
  std::vector<std::string> validate() const;

  // The profile of a model, with the default class filled in.
  PolicyProfile profile_for(const std::string& model_name) const;
};

}  // namespace handoff::epp
