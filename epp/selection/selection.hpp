#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "epp/selection/cost_model.hpp"
#include "epp/selection/selection_error.hpp"
#include "epp/selection/worker_record.hpp"

namespace handoff::epp {

// Why a rank was or was not a candidate.
enum class Eligibility : std::uint8_t {
  kEligible,
  kNotSchedulable,
  kNotAllowed,      // outside the caller's allow-list
  kAdapterMissing,  // the host says that the worker does not have the request's LoRA adapter
  kTaintMissing,
  kOverloaded,
  kNotTheTarget,  // eligible, but a pin or an affinity narrowed the choice to another
};
std::string_view to_string(Eligibility eligibility);

struct CandidateExplanation {
  WorkerRank rank;
  Eligibility eligibility = Eligibility::kEligible;
  CostInputs inputs;
  CostTerms terms;
  std::uint64_t cached_tokens = 0;
  std::uint64_t tie_key = 0;
  bool chosen = false;
};

// Everything the choice was made of. Built only on request.
struct Explanation {
  CostQuery query;
  double temperature = 0.0;
  std::uint64_t min_active_prefill_tokens = 0;
  std::uint64_t request_hash = 0;
  std::size_t tied = 0;
  double probability = 1.0;
  std::string policy_class;
  std::string_view narrowed_by;                  // "", "pin", "affinity", "session"
  std::vector<CandidateExplanation> candidates;  // by (worker, rank)
};

// Proof that somebody still needs a reservation. While any copy lives the reservation never expires; when the
// last one goes without a free, it is an orphan: it expires after active_request_expiry and is counted.
class Lease {
 public:
  Lease() = default;
  explicit Lease(std::shared_ptr<const void> token) : token_(std::move(token)) {}
  // One that nobody holds yet.
  static Lease make() { return Lease(std::make_shared<const char>()); }
  std::weak_ptr<const void> watch() const { return token_; }
  explicit operator bool() const { return token_ != nullptr; }
  void reset() { token_.reset(); }

 private:
  std::shared_ptr<const void> token_;
};

// Overlap of the chosen rank in tokens. Cumulative: device <= host <= disk.
struct OverlapTokens {
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  std::uint64_t disk = 0;
};

struct WorkerLoad {
  WorkerRank rank;
  std::uint64_t active_prefill_tokens = 0;
  std::uint64_t active_decode_blocks = 0;
  std::uint32_t active_requests = 0;
  std::optional<std::uint64_t> prefill_token_capacity;  // max_num_batched_tokens
  std::optional<std::uint64_t> total_kv_blocks;
};

// What a selection decided; kept with its booking, so that a repeated call gets the same answer.
struct SelectionFacts {
  WorkerRank rank;
  std::uint32_t block_size = 0;
  std::uint64_t isl_tokens = 0;
  std::uint64_t effective_prefill_tokens = 0;  // max(0, isl - weighted cached tokens)
  OverlapTokens overlap;
  std::uint64_t potential_decode_blocks = 0;  // with this request's own blocks, counted once
  std::optional<bool> decode_busy;            // absent when the threshold or total_kv_blocks is unknown
  bool track_prefill_tokens = false;
};

// From whom the chosen worker can fetch the prompt's blocks instead of computing them: one kv.fetch action of
// Dynamo's KV hints (protocol 0.1). The hashes are the source engine's own and start at the prompt's first
// block; the engine that fetches decides which of them it lacks.
struct KvFetchHint {
  static constexpr std::string_view kProtocolVersion = "0.1";
  static constexpr std::string_view kActionId = "a1";
  static constexpr std::string_view kActionType = "kv.fetch";
  static constexpr std::string_view kActionVersion = "1.0";
  std::string message_id;
  WorkerRank source;
  std::string source_control_endpoint;
  std::vector<std::uint64_t> block_hashes;
};

struct Selection {
  std::string selection_id;
  SelectionFacts facts;
  std::shared_ptr<const WorkerRecord> worker;
  bool booked = false;
  bool repeated = false;             // the id was booked before: this is that booking
  std::uint64_t attempt = 0;         // of the booking; lifecycle calls may name it
  WorkerLoad load;                   // before the booking
  std::optional<bool> prefill_busy;  // by the request's policy class; absent when it does not queue
  std::chrono::nanoseconds waited{0};
  std::vector<std::uint64_t> sequence_hashes;  // with return_booking_facts
  std::unique_ptr<Explanation> explanation;    // with explain
  std::unique_ptr<KvFetchHint> kv_hint;  // with a booking, where another worker holds more of the prompt
  Lease lease;                           // with a booking, unless the request named its holder
};

}  // namespace handoff::epp
