#include "epp/selection/candidate_filter.hpp"

#include <algorithm>

namespace handoff::epp {

std::string_view to_string(Eligibility eligibility) {
  switch (eligibility) {
    case Eligibility::kEligible:
      return "eligible";
    case Eligibility::kNotSchedulable:
      return "not_schedulable";
    case Eligibility::kNotAllowed:
      return "not_allowed";
    case Eligibility::kAdapterMissing:
      return "adapter_missing";
    case Eligibility::kTaintMissing:
      return "taint_missing";
    case Eligibility::kOverloaded:
      return "overloaded";
    case Eligibility::kNotTheTarget:
      return "not_the_target";
  }
  return "unknown";
}

bool CandidateFilter::overloaded(RankTable::Slot slot) const {
  const OverloadConfig& limits = config_.overload;
  if (!limits.any()) return false;
  const auto load = ledger_.load(slot);
  const WorkerSpec& spec = ranks_[slot].worker->spec;
  if (limits.active_prefill_tokens && load.active_prefill_tokens > *limits.active_prefill_tokens) return true;
  if (limits.active_prefill_tokens_frac && spec.max_num_batched_tokens &&
      static_cast<double>(load.active_prefill_tokens) >
          *limits.active_prefill_tokens_frac * static_cast<double>(*spec.max_num_batched_tokens)) {
    return true;
  }
  return limits.active_decode_blocks_frac && spec.total_kv_blocks &&
         static_cast<double>(load.active_decode_blocks) >
             *limits.active_decode_blocks_frac * static_cast<double>(*spec.total_kv_blocks);
}

Eligibility CandidateFilter::check(RankTable::Slot slot, const PreparedRequest& request) const {
  const RankState& rank = ranks_[slot];
  const auto& allowed = request.request.allowed_workers;
  if (allowed && !std::binary_search(allowed->begin(), allowed->end(), rank.rank.worker)) {
    return Eligibility::kNotAllowed;
  }
  const auto& adapter = request.adapter_workers;
  if (adapter && !std::binary_search(adapter->begin(), adapter->end(), rank.rank.worker)) {
    return Eligibility::kAdapterMissing;
  }
  if (!rank.schedulable) return Eligibility::kNotSchedulable;
  for (const auto& taint : request.request.constraints.required_taints) {
    if (!rank.worker->has_taint(taint)) return Eligibility::kTaintMissing;
  }
  return overloaded(slot) ? Eligibility::kOverloaded : Eligibility::kEligible;
}

void CandidateFilter::collect_eligible(const PreparedRequest& request, CandidateSet& out) const {
  bool any_overloaded = false;
  const auto& slots = ranks_.slots();
  const SelectRequest& wanted = request.request;
  const bool anywhere = !wanted.allowed_workers && !request.adapter_workers &&
                        wanted.constraints.required_taints.empty() && !config_.overload.any();
  if (anywhere) {
    // The usual request: nothing to look at but the lifecycle.
    for (RankTable::Slot slot = 0; slot < slots.size(); ++slot) {
      if (slots[slot].schedulable) out.slots.push_back(slot);
    }
  }
  for (RankTable::Slot slot = 0; !anywhere && slot < slots.size(); ++slot) {
    if (slots[slot].worker == nullptr) continue;
    const Eligibility eligibility = check(slot, request);
    if (eligibility == Eligibility::kEligible) out.slots.push_back(slot);
    any_overloaded |= eligibility == Eligibility::kOverloaded;
  }
  if (!out.slots.empty()) return;
  out.error = any_overloaded
                  ? SelectionError{SelectionErrorCode::kAllOverloaded, "all eligible workers are overloaded"}
                  : SelectionError{SelectionErrorCode::kNoEligibleWorker,
                                   "no schedulable worker meets the request's constraints"};
}

bool CandidateFilter::narrow_to_pin(const PreparedRequest& request, CandidateSet& out) const {
  const auto& pin = request.request.pinned_worker;
  if (!pin) return false;
  out.narrowed_by = "pin";
  const auto& allowed = request.request.allowed_workers;
  if (allowed && !std::binary_search(allowed->begin(), allowed->end(), pin->worker)) {
    out.error = SelectionError{SelectionErrorCode::kPinnedNotAllowed,
                               "pinned_worker is not among allowed_worker_ids"};
    return true;
  }
  const auto slot = ranks_.find(*pin);
  const Eligibility eligibility = slot ? check(*slot, request) : Eligibility::kNotSchedulable;
  if (eligibility == Eligibility::kEligible) {
    out.slots.push_back(*slot);
    out.lane = slot;
  } else if (eligibility == Eligibility::kOverloaded) {
    out.error = SelectionError{SelectionErrorCode::kPinnedOverloaded, "pinned_worker is overloaded"};
  } else {
    out.error =
        SelectionError{SelectionErrorCode::kNoEligibleWorker, "pinned_worker cannot take the request"};
  }
  return true;
}

void CandidateFilter::narrow_to_hard_session(const PreparedRequest& request, SteadyTime now,
                                             CandidateSet& out) const {
  if (config_.affinity.mode != AffinityMode::kHard || !request.request.session) return;
  const auto bound = affinity_.find(request.request.session->session_id, now);
  if (!bound) return;
  if (narrow({bound->worker, bound->rank}, "session", out)) {
    out.lane = out.slots.front();
    return;
  }
  // The binding of a worker that left is forgotten with it; this one is there and cannot serve.
  if (config_.affinity.on_loss == AffinityLossRule::kReject && ranks_.find(*bound)) {
    out.slots.clear();
    out.error = SelectionError{SelectionErrorCode::kAffinityLost, "the session's worker cannot take it now"};
  }
}

bool CandidateFilter::narrow(const WorkerTarget& target, std::string_view reason, CandidateSet& out) const {
  const auto matches = [&](RankTable::Slot slot) {
    const WorkerRank& rank = ranks_[slot].rank;
    return rank.worker == target.worker_id && (!target.rank || rank.rank == *target.rank);
  };
  if (std::none_of(out.slots.begin(), out.slots.end(), matches)) return false;
  std::erase_if(out.slots, [&](RankTable::Slot slot) { return !matches(slot); });
  out.narrowed_by = reason;
  return true;
}

void CandidateFilter::collect_for_admission(const PreparedRequest& request, SteadyTime now,
                                            CandidateSet& out) const {
  out.slots.clear();
  out.narrowed_by = {};
  out.error.reset();
  out.lane.reset();
  if (narrow_to_pin(request, out)) return;
  collect_eligible(request, out);
  if (!out.error) narrow_to_hard_session(request, now, out);
}

void CandidateFilter::collect_for_choice(const PreparedRequest& request, SteadyTime now,
                                         CandidateSet& out) const {
  collect_for_admission(request, now, out);
  if (out.error || !out.narrowed_by.empty()) return;
  if (request.request.affinity_target && narrow(*request.request.affinity_target, "affinity", out)) return;
  if (config_.affinity.mode != AffinityMode::kSoft || !request.request.session) return;
  const auto bound = affinity_.find(request.request.session->session_id, now);
  if (bound) narrow({bound->worker, bound->rank}, "session", out);
}

}  // namespace handoff::epp
