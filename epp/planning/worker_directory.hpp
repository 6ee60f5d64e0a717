#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "epp/discovery/endpoint_source.hpp"
#include "epp/planning/planning_config.hpp"
#include "epp/planning/worker_view.hpp"
#include "epp/selection/selection_service.hpp"

namespace handoff::epp {

// The selectors of a program: two for the two roles, or one that does both.
struct Selectors {
  SelectionService* prefill = nullptr;      // null in aggregated mode
  SelectionService* destination = nullptr;  // aggregated, or decode

  bool is_paired() const { return prefill != nullptr; }
};

// Keeps the selectors' catalogs equal to what discovery says, and answers questions about addresses.
//
// Owner: the program; it outlives discovery. Threads: on_*() from discovery's thread, questions from any;
// they read an immutable view and take no lock. The view follows
// at the end of a batch, the selectors in turns after it, so that neither discovery nor whoever waits for a
// worker is held up by thousands of new ones.
class WorkerDirectory final : public EndpointListener {
 public:
  WorkerDirectory(const PlanningConfig& config, Selectors selectors);
  ~WorkerDirectory() override;

  void on_endpoint(const Endpoint& endpoint) override;
  void on_endpoint_removed(std::string_view name) override;
  bool on_batch_end() override;
  void on_synced(bool synced) override;

  bool synced() const { return synced_.load(std::memory_order_acquire); }

  std::shared_ptr<const WorkerView> view() const {
    return std::atomic_load_explicit(&view_, std::memory_order_acquire);
  }

  // How many views were made.
  std::uint64_t views_made() const { return views_made_.load(std::memory_order_relaxed); }

  // Endpoints that are in no selector, one line each with the reason.
  std::vector<std::string> excluded() const;

 private:
  struct Placed {
    Endpoint endpoint;
    SelectionService* service = nullptr;  // null: excluded
    std::string reason;                   // why excluded
    bool is_in_selector = false;
  };
  // Told and not yet in its selector, with the reason to be excluded before.
  using Pending = std::map<std::string, std::string, std::less<>>;

  SelectionService* service_for(const Endpoint& endpoint, std::string& reason) const;
  WorkerSpec spec_of(const Endpoint& endpoint, bool is_prefill) const;
  void note_pending(const std::string& name, const Placed& placed, std::string reason_before);
  void place_some(Pending& pending, std::size_t most);
  void place(Placed& placed);
  void show(const Placed& placed);
  void publish();

  const PlanningConfig& config_;
  const Selectors selectors_;
  std::atomic<bool> synced_{false};

  mutable std::mutex mutex_;  // of placed_
  std::map<std::string, Placed, std::less<>> placed_;
  // They go into the selectors after the view has them: what a selector chooses must be in the view. News of
  // workers that are in use don't wait behind thousands of new ones.
  Pending changes_;
  Pending arrivals_;
  WorkerView next_view_;
  bool is_view_old_ = false;
  std::atomic<std::uint64_t> views_made_{0};
  std::shared_ptr<const WorkerView> view_;
};

}  // namespace handoff::epp
