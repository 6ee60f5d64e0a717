#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_index.hpp"
#include "epp/selection/worker_record.hpp"

namespace handoff::epp {

// The prompt as token ids. Views: read during the call only, never kept.
struct TokenPrompt {
  std::span<const std::uint32_t> token_ids;
  std::string lora_name;   // empty = absent
  std::string cache_salt;  // empty = absent
  std::span<const BlockMedia> media;
  std::optional<bool> is_eagle;  // default: the partition's
};

// The prompt as hashes that the caller computed (or got back from an earlier selection); trusted as they are.
struct HashedPrompt {
  std::vector<std::uint64_t> sequence_hashes;
  std::uint64_t isl_tokens = 0;
  std::string lora_name = {};  // only for the choice among workers: the hashes are as they are
};

// A prompt of which only the size is known: routed by load, its blocks are shared with nobody.
struct SizedPrompt {
  std::uint64_t isl_tokens = 0;
  std::string lora_name = {};
};

using Prompt = std::variant<SizedPrompt, TokenPrompt, HashedPrompt>;

// Per-request replacements of the configured weights.
struct CostOverride {
  std::optional<double> overlap_score_credit;
  std::optional<double> prefill_load_scale;
  std::optional<double> router_temperature;
  std::optional<double> shared_cache_multiplier;
  std::optional<bool> assume_kv_reuse;
  std::optional<bool> track_prefill_tokens;
};

struct WorkerTarget {
  WorkerId worker_id = 0;
  std::optional<DpRank> rank;  // absent: any rank of the worker
};

struct RoutingConstraints {
  std::vector<std::string> required_taints;
  std::map<std::string, double> preferred_taints;  // weight > 0 attracts, < 0 repels
};

struct SessionRef {
  std::string session_id;
  bool final = false;  // the binding ends with this request
};

struct SelectRequest {
  std::string model_name = "default";
  std::string routing_group = "default";
  // Names the reservation, and seeds the tie-break. Made up when empty.
  std::string selection_id;
  // Seeds the tie-break instead, for ids that differ from run to run. Read during the call only.
  std::string_view tie_seed;
  Prompt prompt;
  CostOverride overrides;
  std::optional<std::uint32_t> expected_output_tokens;

  double priority_jump = 0.0;
  std::uint32_t strict_priority = 0;
  std::optional<SteadyTime> queue_deadline;
  std::string policy_class;  // a class or a family of the policy profile

  std::optional<SessionRef> session;
  std::optional<WorkerTarget> affinity_target;  // taken when eligible, else ignored
  std::optional<WorkerRank> pinned_worker;      // taken or an error
  std::optional<std::vector<WorkerId>> allowed_workers;
  RoutingConstraints constraints;
  // Block ranges [first, last) that a shared cache holds, ascending.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> shared_cache_hits;

  // Who holds the reservation: it is no orphan while that lives, and the answer brings no lease. The id is
  // the holder's alone, so it is not remembered when the reservation has ended. Absent: the answer's lease
  // holds.
  std::optional<std::weak_ptr<const void>> holder;

  bool advisory = false;              // select only: the current state, without waiting
  bool explain = false;               // attach an Explanation
  bool return_booking_facts = false;  // attach the sequence hashes, for create_reservation on a peer
};

// Two forms. With a worker: books exactly what it says on exactly this rank, for bookings that were chosen
// elsewhere. Without: books what select() chose for this id and the service still remembers (see
// SelectionCacheConfig); every other field is ignored.
struct ReservationRequest {
  std::string model_name = "default";
  std::string routing_group = "default";
  std::string selection_id;
  std::optional<WorkerRank> worker;
  Prompt prompt;
  std::optional<std::uint32_t> expected_output_tokens;
  std::optional<std::uint64_t> effective_prefill_tokens;  // default: the whole prompt
  std::optional<bool> track_prefill_tokens;  // default: true with effective tokens, else the role's
};

}  // namespace handoff::epp
