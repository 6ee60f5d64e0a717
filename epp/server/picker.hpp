#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "epp/planning/housekeeping.hpp"
#include "epp/planning/plan_ledger.hpp"
#include "epp/planning/prefill_rates.hpp"
#include "epp/planning/request_life.hpp"
#include "epp/planning/request_planner.hpp"
#include "epp/planning/worker_directory.hpp"
#include "epp/server/epp_config.hpp"

namespace handoff::epp {

// Everything that chooses and books, put together from the settings; without network but for the feeds of KV
// events.
//
// Owner: the program. Order of life: picker, then server and discovery, which both stop before it goes.
class Picker {
 public:
  // `tokenizer` may be null and must outlive the picker. Throws std::runtime_error for settings that
  // contradict each other.
  Picker(const EppConfig& config, Tokenizer* tokenizer);
  ~Picker();

  EndpointListener& endpoints() { return *directory_; }
  bool ready() const { return directory_->synced(); }
  const LifeServices& life() const { return life_; }
  // Loads, plans and counters as JSON.
  std::string report() const;

 private:
  const EppConfig& config_;
  std::unique_ptr<SelectionService> prefill_;
  std::unique_ptr<SelectionService> destination_;
  std::unique_ptr<WorkerDirectory> directory_;
  PlanLedger ledger_;
  PrefillRates rates_;
  std::unique_ptr<Housekeeping> housekeeping_;
  std::unique_ptr<RequestPlanner> planner_;
  LifeServices life_;
};

}  // namespace handoff::epp
