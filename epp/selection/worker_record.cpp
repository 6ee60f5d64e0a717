#include "epp/selection/worker_record.hpp"

#include <algorithm>
#include <charconv>

#include "epp/selection/mix_hash.hpp"

namespace handoff::epp {
namespace {

std::string per_rank(const std::map<DpRank, std::string>& by_rank, const std::string& base, DpRank rank) {
  if (const auto found = by_rank.find(rank); found != by_rank.end()) return found->second;
  return base.empty() ? std::string() : endpoint_for_rank(base, rank);
}

}  // namespace

std::size_t WorkerRankHash::operator()(const WorkerRank& key) const noexcept {
  return static_cast<std::size_t>(mix64(key.worker ^ mix64(key.rank)));
}

std::string_view to_string(WorkerLifecycle lifecycle) {
  switch (lifecycle) {
    case WorkerLifecycle::kIncomplete:
      return "incomplete";
    case WorkerLifecycle::kSchedulable:
      return "schedulable";
    case WorkerLifecycle::kDraining:
      return "draining";
    case WorkerLifecycle::kUnschedulable:
      return "unschedulable";
  }
  return "unknown";
}

bool WorkerRecord::has_taint(std::string_view taint) const {
  return std::binary_search(effective_taints.begin(), effective_taints.end(), taint);
}

bool WorkerRecord::has_rank(DpRank rank) const {
  // The difference form is safe at the top of the range, where start + size would wrap.
  return rank >= spec.data_parallel_start_rank &&
         rank - spec.data_parallel_start_rank < spec.data_parallel_size;
}

void WorkerPatch::apply_to(WorkerSpec& spec) const {
  const auto set = [](auto& field, const auto& wanted) {
    if (wanted) field = *wanted;
  };
  set(spec.model_name, model_name);
  set(spec.routing_group, routing_group);
  set(spec.endpoint, endpoint);
  set(spec.block_size, block_size);
  set(spec.data_parallel_start_rank, data_parallel_start_rank);
  set(spec.data_parallel_size, data_parallel_size);
  set(spec.kv_events, kv_events);
  set(spec.kv_events_endpoint, kv_events_endpoint);
  set(spec.replay_endpoint, replay_endpoint);
  set(spec.kv_events_endpoints, kv_events_endpoints);
  set(spec.replay_endpoints, replay_endpoints);
  set(spec.stable_routing_id, stable_routing_id);
  set(spec.is_eagle, is_eagle);
  set(spec.taints, taints);
  set(spec.topology_domains, topology_domains);
  set(spec.router_hint_worker_type, router_hint_worker_type);
  set(spec.router_hint_source_control_endpoints, router_hint_source_control_endpoints);
  set(spec.max_num_batched_tokens, max_num_batched_tokens);
  set(spec.total_kv_blocks, total_kv_blocks);
  set(spec.kv_transfer, kv_transfer);
}

std::string topology_taint(std::string_view domain, std::string_view value) {
  std::string taint = "dynamo.topology/";
  taint.append(domain).append("=").append(value);
  return taint;
}

std::string endpoint_for_rank(std::string_view base, DpRank rank) {
  const std::size_t colon = base.rfind(':');
  if (colon == std::string_view::npos) return {};
  const std::string_view digits = base.substr(colon + 1);
  std::uint32_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0) return {};
  if (port > 65535 || rank > 65535 - port) return {};
  return std::string(base.substr(0, colon + 1)) + std::to_string(port + rank);
}

std::string events_endpoint(const WorkerSpec& spec, DpRank rank) {
  return per_rank(spec.kv_events_endpoints, spec.kv_events_endpoint, rank);
}

std::string replay_endpoint(const WorkerSpec& spec, DpRank rank) {
  return per_rank(spec.replay_endpoints, spec.replay_endpoint, rank);
}

}  // namespace handoff::epp
