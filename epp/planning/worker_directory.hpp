#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "epp/discovery/endpoint_source.hpp"
#include "epp/planning/planning_config.hpp"
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
// they read an immutable view and take no lock. The view and the
// selectors follow at the end of a batch.
class WorkerDirectory final : public EndpointListener {
 public:
  WorkerDirectory(const PlanningConfig& config, Selectors selectors);
  ~WorkerDirectory() override;

  void on_endpoint(const Endpoint& endpoint) override;
  void on_endpoint_removed(std::string_view name) override;
  void on_batch_end() override;
  void on_synced(bool synced) override;

  bool synced() const { return synced_.load(std::memory_order_acquire); }

  struct Known {
    std::string name;
    std::string address;
    std::uint16_t port = 0;
    bool is_prefill = false;
    bool ready = false;
  };
  struct View {
    std::unordered_map<WorkerId, Known> workers;
    std::unordered_map<std::string, WorkerId> destinations;  // by "ip:port"
    std::unordered_map<std::string, WorkerId> prefills;      // the same of prefill workers
  };
  std::shared_ptr<const View> view() const {
    return std::atomic_load_explicit(&view_, std::memory_order_acquire);
  }

  // How many views were made. Each costs as much as there are endpoints.
  std::uint64_t views_made() const { return views_made_.load(std::memory_order_relaxed); }

  // Endpoints that are in no selector, one line each with the reason.
  std::vector<std::string> excluded() const;

 private:
  struct Placed {
    Endpoint endpoint;
    SelectionService* service = nullptr;  // null: excluded
    std::string reason;                   // why excluded
  };

  SelectionService* service_for(const Endpoint& endpoint, std::string& reason) const;
  WorkerSpec spec_of(const Endpoint& endpoint, bool is_prefill) const;
  void place_pending();
  void place(Placed& placed);
  void publish();

  const PlanningConfig& config_;
  const Selectors selectors_;
  std::atomic<bool> synced_{false};

  mutable std::mutex mutex_;  // of placed_
  std::map<std::string, Placed, std::less<>> placed_;
  // Told since the last end of a batch, with the reason of each to be excluded before. They go into the
  // selectors after the view has them: what a selector chooses must be in the view.
  std::map<std::string, std::string, std::less<>> pending_;
  bool is_view_old_ = false;
  std::atomic<std::uint64_t> views_made_{0};
  std::shared_ptr<const View> view_;
};

}  // namespace handoff::epp
