#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "epp/kv_index/worker_rank.hpp"

namespace handoff::epp {

using WorkerId = std::uint64_t;
using DpRank = std::uint32_t;

struct WorkerRankHash {
  std::size_t operator()(const WorkerRank& key) const noexcept;
};

enum class TransferEnforcement : std::uint8_t { kRequired, kPreferred };

// Where a prefill worker may send its KV blocks, as a topology domain ("zone", "rack").
struct KvTransferRule {
  std::string domain;
  TransferEnforcement enforcement = TransferEnforcement::kRequired;
  float preferred_weight = 1.0F;  // with kPreferred only
};

// What the host declares about a worker. An upsert replaces all of it.
struct WorkerSpec {
  WorkerId worker_id = 0;  // unique in the service, not only in its partition
  std::string model_name = "default";
  std::string routing_group = "default";
  std::string endpoint;
  std::uint32_t block_size = 0;
  DpRank data_parallel_start_rank = 0;
  std::uint32_t data_parallel_size = 1;

  // False: this worker publishes no KV events, and its index entries are predicted from bookings.
  bool kv_events = true;
  // A base address: rank r is at its port + r, for events and replay alike. The per-rank maps win over it.
  std::string kv_events_endpoint;
  std::string replay_endpoint;
  std::map<DpRank, std::string> kv_events_endpoints;
  std::map<DpRank, std::string> replay_endpoints;

  std::optional<std::uint64_t> max_num_batched_tokens;
  std::optional<std::uint64_t> total_kv_blocks;
  std::string stable_routing_id;  // when set, ties break by it, so that they survive a new worker_id
  bool is_eagle = false;
  std::set<std::string> taints;
  std::map<std::string, std::string> topology_domains;
  std::optional<KvTransferRule> kv_transfer;

  // KV-fetch hints: the kind of engine that understands them (workers of one kind can fetch from each other;
  // empty: it takes none), and per rank the address where others may fetch its blocks.
  std::string router_hint_worker_type = {};
  std::map<DpRank, std::string> router_hint_source_control_endpoints = {};
};

// A change of some fields of a declaration. What is absent stays as it is, and nothing can be cleared by it:
// a list or map that is given replaces the old one as a whole.
struct WorkerPatch {
  std::optional<std::string> model_name;
  std::optional<std::string> routing_group;
  std::optional<std::string> endpoint;
  std::optional<std::uint32_t> block_size;
  std::optional<DpRank> data_parallel_start_rank;
  std::optional<std::uint32_t> data_parallel_size;
  std::optional<bool> kv_events;
  std::optional<std::string> kv_events_endpoint;
  std::optional<std::string> replay_endpoint;
  std::optional<std::map<DpRank, std::string>> kv_events_endpoints;
  std::optional<std::map<DpRank, std::string>> replay_endpoints;
  std::optional<std::uint64_t> max_num_batched_tokens;
  std::optional<std::uint64_t> total_kv_blocks;
  std::optional<std::string> stable_routing_id;
  std::optional<bool> is_eagle;
  std::optional<std::set<std::string>> taints;
  std::optional<std::map<std::string, std::string>> topology_domains;
  std::optional<KvTransferRule> kv_transfer;
  std::optional<std::string> router_hint_worker_type;
  std::optional<std::map<DpRank, std::string>> router_hint_source_control_endpoints;

  void apply_to(WorkerSpec& spec) const;
};

enum class WorkerLifecycle : std::uint8_t {
  kIncomplete,     // a required field is missing; see the reasons
  kSchedulable,    // takes new requests
  kDraining,       // takes no new requests, keeps its bookings
  kUnschedulable,  // taken out by the host, keeps its bookings
};
std::string_view to_string(WorkerLifecycle lifecycle);

// What the host says about a worker's state beside its declaration.
enum class WorkerCondition : std::uint8_t { kServing, kDraining, kUnavailable };

// The catalog's immutable view of a worker. Selections share it, so a result stays valid after a later
// upsert.
struct WorkerRecord {
  WorkerSpec spec;
  WorkerLifecycle lifecycle = WorkerLifecycle::kIncomplete;
  std::vector<std::string> not_schedulable_reasons;
  // spec.taints plus one canonical taint per topology domain, sorted.
  std::vector<std::string> effective_taints;

  bool has_taint(std::string_view taint) const;
  // Ranks are [start, start + size).
  bool has_rank(DpRank rank) const;
};

// The taint a worker carries for a topology domain: dynamo.topology/zone=us-east-1a.
std::string topology_taint(std::string_view domain, std::string_view value);

// `base` with its port moved up by `rank`; empty when base has no numeric port or the port leaves 1..65535.
std::string endpoint_for_rank(std::string_view base, DpRank rank);

// The SUB (or ROUTER) address of one rank: per-rank map first, then the base address; empty when neither has
// it.
std::string events_endpoint(const WorkerSpec& spec, DpRank rank);
std::string replay_endpoint(const WorkerSpec& spec, DpRank rank);

}  // namespace handoff::epp
