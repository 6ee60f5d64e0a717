#include "epp/selection/worker_choice.hpp"

#include <algorithm>

namespace handoff::epp {
namespace {

std::uint32_t shared_blocks_beyond(const SelectRequest& request, std::uint32_t device_blocks) {
  std::uint32_t blocks = 0;
  for (const auto& [first, last] : request.shared_cache_hits) {
    const std::uint32_t from = std::max(first, device_blocks);
    if (last > from) blocks += last - from;
  }
  return blocks;
}

double taint_preference(const SelectRequest& request, const WorkerRecord& worker) {
  double sum = 0.0;
  for (const auto& [taint, weight] : request.constraints.preferred_taints) {
    if (worker.has_taint(taint)) sum += weight;
  }
  return sum;
}

}  // namespace

void WorkerChoice::load_inputs(const PreparedRequest& request) {
  overlap_row_.assign(ranks_.slots().size(), 0);
  for (std::uint32_t row = 0; row < request.overlaps.size(); ++row) {
    if (const auto slot = ranks_.slot_of(request.overlaps[row])) overlap_row_[*slot] = row + 1;
  }
  active_depth_.assign(ranks_.slots().size(), 0);
  if (!request.shares_blocks) return;
  ledger_.blocks().add_prefix_depths(request.tracked_hashes(), active_depth_);
  if (ledger_.stride() == 1) return;
  for (std::uint32_t& depth : active_depth_) depth *= ledger_.stride();
}

CostInputs WorkerChoice::inputs_of(RankTable::Slot slot, const PreparedRequest& request) const {
  const auto load = ledger_.load(slot);
  CostInputs inputs;
  inputs.active_prefill_tokens = load.active_prefill_tokens;
  inputs.active_decode_blocks = load.active_decode_blocks;
  inputs.active_requests = load.active_requests;
  inputs.additional_active_blocks = static_cast<std::uint32_t>(request.tracked_blocks - active_depth_[slot]);
  if (overlap_row_[slot] != 0) {
    const RankOverlap& row = request.overlaps[overlap_row_[slot] - 1];
    inputs.device_blocks = row.device;
    inputs.host_blocks = row.host;
    inputs.disk_blocks = row.disk + row.external;
  }
  if (!request.request.shared_cache_hits.empty()) {
    inputs.shared_blocks = shared_blocks_beyond(request.request, inputs.device_blocks);
  }
  if (!request.request.constraints.preferred_taints.empty()) {
    inputs.taint_preference = taint_preference(request.request, *ranks_[slot].worker);
  }
  return inputs;
}

SelectionFacts WorkerChoice::facts_of(RankTable::Slot slot, const PreparedRequest& request,
                                      const CostInputs& inputs) const {
  const std::uint64_t block_size = request.cost.block_size;
  SelectionFacts facts;
  facts.rank = ranks_[slot].rank;
  facts.block_size = request.cost.block_size;
  facts.isl_tokens = request.isl_tokens;
  facts.effective_prefill_tokens = request.isl_tokens - cached_tokens(request.cost, inputs);
  facts.overlap.device = inputs.device_blocks * block_size;
  facts.overlap.host = facts.overlap.device + inputs.host_blocks * block_size;
  facts.overlap.disk = facts.overlap.host + inputs.disk_blocks * block_size;
  facts.potential_decode_blocks = inputs.active_decode_blocks + inputs.additional_active_blocks;
  const auto& total = ranks_[slot].worker->spec.total_kv_blocks;
  if (config_.decode_busy_threshold && total) {
    facts.decode_busy = static_cast<double>(facts.potential_decode_blocks) >
                        *config_.decode_busy_threshold * static_cast<double>(*total);
  }
  facts.track_prefill_tokens = request.cost.track_prefill;
  return facts;
}

WorkerChoice::Chosen WorkerChoice::choose(const PreparedRequest& request, const CandidateSet& candidates,
                                          const CandidateFilter& filter, Explanation* explanation) {
  load_inputs(request);
  const std::size_t count = candidates.slots.size();
  inputs_.resize(count);
  costs_.resize(count);
  tie_keys_.resize(count);
  std::uint64_t min_active_prefill = UINT64_MAX;
  for (std::size_t i = 0; i < count; ++i) {
    inputs_[i] = inputs_of(candidates.slots[i], request);
    min_active_prefill = std::min(min_active_prefill, inputs_[i].active_prefill_tokens);
  }
  for (std::size_t i = 0; i < count; ++i) {
    costs_[i] = evaluate_cost(request.cost, inputs_[i], min_active_prefill).cost;
    tie_keys_[i] = ranks_[candidates.slots[i]].tie_key;
  }
  const Pick pick = pick_candidate(costs_, tie_keys_, request.request_hash, request.temperature);
  const RankTable::Slot slot = candidates.slots[pick.index];
  if (explanation != nullptr) explain(request, candidates, filter, min_active_prefill, pick, *explanation);
  return {slot, facts_of(slot, request, inputs_[pick.index])};
}

void WorkerChoice::explain(const PreparedRequest& request, const CandidateSet& candidates,
                           const CandidateFilter& filter, std::uint64_t min_active_prefill, const Pick& pick,
                           Explanation& out) const {
  out.query = request.cost;
  out.temperature = request.temperature;
  out.min_active_prefill_tokens = min_active_prefill;
  out.request_hash = request.request_hash;
  out.tied = pick.tied;
  out.probability = pick.probability;
  out.narrowed_by = candidates.narrowed_by;
  const auto& slots = ranks_.slots();
  for (RankTable::Slot slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].worker == nullptr) continue;
    CandidateExplanation row;
    row.rank = slots[slot].rank;
    row.eligibility = filter.check(slot, request);
    row.inputs = inputs_of(slot, request);
    row.terms = evaluate_cost(request.cost, row.inputs, min_active_prefill);
    row.cached_tokens = cached_tokens(request.cost, row.inputs);
    row.tie_key = slots[slot].tie_key;
    row.chosen = slot == candidates.slots[pick.index];
    const bool is_candidate = std::binary_search(candidates.slots.begin(), candidates.slots.end(), slot);
    if (row.eligibility == Eligibility::kEligible && !is_candidate) {
      row.eligibility = Eligibility::kNotTheTarget;
    }
    out.candidates.push_back(row);
  }
  std::sort(out.candidates.begin(), out.candidates.end(),
            [](const auto& left, const auto& right) { return left.rank < right.rank; });
}

}  // namespace handoff::epp
