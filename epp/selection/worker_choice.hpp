#pragma once

#include <memory>
#include <vector>

#include "epp/selection/candidate_filter.hpp"

namespace handoff::epp {

// Weighs the candidates of a request and picks one. Keeps scratch memory between calls, so that a choice
// allocates nothing of its own.
//
// Owner: Partition, under its lock.
class WorkerChoice {
 public:
  WorkerChoice(const SelectorConfig& config, const RankTable& ranks, const LoadLedger& ledger)
      : config_(config), ranks_(ranks), ledger_(ledger) {}

  struct Chosen {
    RankTable::Slot slot = 0;
    SelectionFacts facts;
  };

  // `candidates` must not be empty. `explanation` (optional) receives the whole picture.
  Chosen choose(const PreparedRequest& request, const CandidateSet& candidates, const CandidateFilter& filter,
                Explanation* explanation);

  // The terms of the cost formula for one rank, after load_inputs(). For what-if answers.
  CostInputs inputs_of(RankTable::Slot slot, const PreparedRequest& request) const;
  SelectionFacts facts_of(RankTable::Slot slot, const PreparedRequest& request,
                          const CostInputs& inputs) const;
  // Maps the request's overlaps and active prefixes to slots. Call before inputs_of.
  void load_inputs(const PreparedRequest& request);

 private:
  void explain(const PreparedRequest& request, const CandidateSet& candidates, const CandidateFilter& filter,
               std::uint64_t min_active_prefill, const Pick& pick, Explanation& out) const;

  const SelectorConfig& config_;
  const RankTable& ranks_;
  const LoadLedger& ledger_;

  std::vector<std::uint32_t> overlap_row_;   // by slot: 1 + index into the request's overlaps, 0 = none
  std::vector<std::uint32_t> active_depth_;  // by slot
  std::vector<CostInputs> inputs_;
  std::vector<double> costs_;
  std::vector<std::uint64_t> tie_keys_;
};

}  // namespace handoff::epp
