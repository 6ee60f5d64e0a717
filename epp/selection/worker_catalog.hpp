#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "epp/selection/selection_error.hpp"
#include "epp/selection/selector_config.hpp"
#include "epp/selection/worker_record.hpp"

namespace handoff::epp {

class Partition;

// What the service knows about a worker and where it put it.
struct CatalogEntry {
  std::shared_ptr<const WorkerRecord> record;
  WorkerCondition condition = WorkerCondition::kServing;
  std::shared_ptr<Partition> partition;  // null while the worker is in none
};

// The declared workers, by id. Which of them can be scheduled, and why not, is decided here.
//
// Owner: SelectionService, under its catalog lock.
class WorkerCatalog {
 public:
  explicit WorkerCatalog(const SelectorConfig& config) : config_(config) {}

  // The record of a declaration: lifecycle, reasons, canonical taints. An error only for input out of bounds;
  // a declaration that lacks something is a record with reasons.
  Result<WorkerRecord> describe(WorkerSpec spec, WorkerCondition condition) const;

  // Room for this worker beside the others?
  bool has_room_for(const WorkerSpec& spec) const;

  CatalogEntry* find(WorkerId id);
  const CatalogEntry* find(WorkerId id) const;
  CatalogEntry& put(const WorkerRecord& record, WorkerCondition condition);
  void replace_record(CatalogEntry& entry, std::shared_ptr<const WorkerRecord> record);
  void erase(WorkerId id);
  const std::map<WorkerId, CatalogEntry>& entries() const { return entries_; }

 private:
  std::vector<std::string> missing(const WorkerSpec& spec) const;

  const SelectorConfig& config_;
  std::map<WorkerId, CatalogEntry> entries_;
  std::size_t ranks_ = 0;
};

}  // namespace handoff::epp
