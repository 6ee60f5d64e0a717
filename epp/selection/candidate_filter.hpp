#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "epp/selection/load_ledger.hpp"
#include "epp/selection/prepared_request.hpp"
#include "epp/selection/rank_table.hpp"
#include "epp/selection/session_affinity.hpp"

namespace handoff::epp {

// The ranks a request may go to. Exactly one of `slots` and `error` is non-empty.
struct CandidateSet {
  std::vector<RankTable::Slot> slots;  // by slot
  std::string_view narrowed_by;        // "", "pin", "affinity", "session"
  std::optional<SelectionError> error;
  // Waiting in the lane of one rank: a pin, or hard affinity.
  std::optional<RankTable::Slot> lane;
};

// Decides who is a candidate: allow-list, schedulable, required taints, overload, then pins and affinity.
// A view over the partition's parts, used under its lock.
class CandidateFilter {
 public:
  CandidateFilter(const SelectorConfig& config, const RankTable& ranks, const LoadLedger& ledger,
                  SessionAffinity& affinity)
      : config_(config), ranks_(ranks), ledger_(ledger), affinity_(affinity) {}

  Eligibility check(RankTable::Slot slot, const PreparedRequest& request) const;

  // Whom the request may wait for: all eligible ranks, or the one it is bound to.
  void collect_for_admission(const PreparedRequest& request, SteadyTime now, CandidateSet& out) const;
  // Whom it may be sent to now: the same, narrowed by soft preferences that can be met.
  void collect_for_choice(const PreparedRequest& request, SteadyTime now, CandidateSet& out) const;

 private:
  bool overloaded(RankTable::Slot slot) const;
  void collect_eligible(const PreparedRequest& request, CandidateSet& out) const;
  bool narrow_to_pin(const PreparedRequest& request, CandidateSet& out) const;
  void narrow_to_hard_session(const PreparedRequest& request, SteadyTime now, CandidateSet& out) const;
  bool narrow(const WorkerTarget& target, std::string_view reason, CandidateSet& out) const;

  const SelectorConfig& config_;
  const RankTable& ranks_;
  const LoadLedger& ledger_;
  SessionAffinity& affinity_;
};

}  // namespace handoff::epp
