#include "epp/selection/worker_catalog.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace handoff::epp {
namespace {

// Far beyond any engine; keeps one declaration from filling the rank tables.
constexpr std::uint32_t kMaxDataParallelSize = 1024;

bool texts_fit(const WorkerSpec& spec, const SelectionLimits& limits) {
  const auto fits = [&](const std::string& text) { return text.size() <= limits.max_text_bytes; };
  const auto all_fit = [&](const auto& map) {
    return map.size() <= kMaxDataParallelSize &&
           std::all_of(map.begin(), map.end(), [&](const auto& entry) { return fits(entry.second); });
  };
  bool fit = fits(spec.model_name) && fits(spec.routing_group) && fits(spec.endpoint) &&
             fits(spec.kv_events_endpoint) && fits(spec.replay_endpoint) && fits(spec.stable_routing_id) &&
             all_fit(spec.kv_events_endpoints) && all_fit(spec.replay_endpoints) &&
             fits(spec.router_hint_worker_type) && all_fit(spec.router_hint_source_control_endpoints) &&
             spec.taints.size() <= limits.max_constraints &&
             spec.topology_domains.size() <= limits.max_constraints;
  for (const auto& taint : spec.taints) fit = fit && fits(taint);
  for (const auto& [domain, value] : spec.topology_domains) fit = fit && fits(domain) && fits(value);
  return fit && (!spec.kv_transfer || fits(spec.kv_transfer->domain));
}

std::vector<std::string> effective_taints(const WorkerSpec& spec) {
  std::vector<std::string> taints(spec.taints.begin(), spec.taints.end());
  for (const auto& [domain, value] : spec.topology_domains) taints.push_back(topology_taint(domain, value));
  std::sort(taints.begin(), taints.end());
  taints.erase(std::unique(taints.begin(), taints.end()), taints.end());
  return taints;
}

std::size_t rank_count(const CatalogEntry& entry) {
  return entry.record->spec.data_parallel_size;
}

}  // namespace

Result<WorkerRecord> WorkerCatalog::describe(WorkerSpec spec, WorkerCondition condition) const {
  if (!texts_fit(spec, config_.limits)) {
    return {SelectionErrorCode::kBadRequest, "a text or list of the worker is too long"};
  }
  if (spec.data_parallel_size > kMaxDataParallelSize ||
      spec.data_parallel_start_rank > std::numeric_limits<DpRank>::max() - kMaxDataParallelSize) {
    return {SelectionErrorCode::kBadRequest, "data_parallel ranks are out of range"};
  }
  if (spec.kv_transfer && !std::isfinite(spec.kv_transfer->preferred_weight)) {
    return {SelectionErrorCode::kBadRequest, "kv_transfer_preferred_weight must be finite"};
  }
  WorkerRecord record;
  record.not_schedulable_reasons = missing(spec);
  record.effective_taints = effective_taints(spec);
  if (!record.not_schedulable_reasons.empty()) {
    record.lifecycle = WorkerLifecycle::kIncomplete;
  } else if (condition == WorkerCondition::kDraining) {
    record.lifecycle = WorkerLifecycle::kDraining;
    record.not_schedulable_reasons.emplace_back("draining");
  } else if (condition == WorkerCondition::kUnavailable) {
    record.lifecycle = WorkerLifecycle::kUnschedulable;
    record.not_schedulable_reasons.emplace_back("marked unavailable");
  } else {
    record.lifecycle = WorkerLifecycle::kSchedulable;
  }
  record.spec = std::move(spec);
  return record;
}

std::vector<std::string> WorkerCatalog::missing(const WorkerSpec& spec) const {
  std::vector<std::string> reasons;
  if (spec.endpoint.empty()) reasons.emplace_back("endpoint is required");
  if (spec.block_size == 0) reasons.emplace_back("block_size must be > 0");
  if (spec.data_parallel_size == 0) reasons.emplace_back("data_parallel_size must be > 0");
  if (!spec.max_num_batched_tokens && config_.profile_for(spec.model_name).queues()) {
    reasons.emplace_back("max_num_batched_tokens is required while queueing is enabled");
  }
  // Without it nobody could be told to be required, and any decode worker would do.
  if (spec.kv_transfer && spec.kv_transfer->enforcement == TransferEnforcement::kRequired &&
      !spec.topology_domains.contains(spec.kv_transfer->domain)) {
    reasons.push_back("topology_domains has no value for the required kv_transfer_domain " +
                      spec.kv_transfer->domain);
  }
  if (config_.options.use_overlap && config_.use_kv_events && spec.kv_events) {
    for (std::uint32_t i = 0; i < spec.data_parallel_size; ++i) {
      const DpRank rank = spec.data_parallel_start_rank + i;
      if (events_endpoint(spec, rank).empty()) {
        reasons.push_back("kv_events endpoint is required for dp_rank " + std::to_string(rank));
      }
    }
  }
  return reasons;
}

bool WorkerCatalog::has_room_for(const WorkerSpec& spec) const {
  const CatalogEntry* known = find(spec.worker_id);
  const std::size_t others = ranks_ - (known == nullptr ? 0 : rank_count(*known));
  return others + spec.data_parallel_size <= config_.limits.max_ranks &&
         (known != nullptr || entries_.size() < config_.limits.max_workers);
}

CatalogEntry* WorkerCatalog::find(WorkerId id) {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

const CatalogEntry* WorkerCatalog::find(WorkerId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

CatalogEntry& WorkerCatalog::put(const WorkerRecord& record, WorkerCondition condition) {
  CatalogEntry& entry = entries_[record.spec.worker_id];
  entry.condition = condition;
  replace_record(entry, std::make_shared<const WorkerRecord>(record));
  return entry;
}

void WorkerCatalog::replace_record(CatalogEntry& entry, std::shared_ptr<const WorkerRecord> record) {
  if (entry.record != nullptr) ranks_ -= rank_count(entry);
  entry.record = std::move(record);
  ranks_ += rank_count(entry);
}

void WorkerCatalog::erase(WorkerId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  ranks_ -= rank_count(found->second);
  entries_.erase(found);
}

}  // namespace handoff::epp
