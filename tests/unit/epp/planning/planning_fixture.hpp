#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "epp/ext_proc/ext_proc_stream.hpp"
#include "epp/planning/request_life.hpp"

namespace handoff::epp {

// Both selectors, a directory and a ledger, without network, threads or real time.
class PlanningFixture : public ::testing::Test {
 protected:
  void start(bool paired = true) {
    config.model_name = "m";
    config.block_size = 16;
    config.use_kv_events = false;
    if (paired) prefill = make(SelectorRole::kPrefill);
    destination = make(paired ? SelectorRole::kDecode : SelectorRole::kAggregated);
    selectors = {.prefill = prefill.get(), .destination = destination.get()};
    directory = std::make_unique<WorkerDirectory>(config, selectors);
    directory->on_synced(true);
  }

  std::unique_ptr<SelectionService> make(SelectorRole role) {
    SelectorConfig selector = SelectorConfig::for_role(role);
    selector.use_kv_events = false;
    selector.router_queue_threshold =
        role == SelectorRole::kPrefill ? prefill_queue_threshold : decode_queue_threshold;
    SelectionEnvironment environment;
    environment.clock = [this] { return now; };
    environment.random = [this] { return ++random; };
    return std::move(SelectionService::create(selector, environment)).value();
  }

  Endpoint endpoint(const std::string& name, std::optional<EndpointRole> role, std::uint16_t port) {
    Endpoint made;
    made.name = name;
    made.worker_id = port;
    made.address = "127.0.0.1";
    made.port = port;
    made.role = role;
    made.ready = true;
    return made;
  }
  void end_batch() {
    while (directory->on_batch_end()) {
    }
  }
  void tell(const Endpoint& endpoint) {
    directory->on_endpoint(endpoint);
    end_batch();
  }
  void tell_removed(std::string_view name) {
    directory->on_endpoint_removed(name);
    end_batch();
  }
  void add_prefill(const std::string& name, std::uint16_t port) {
    tell(endpoint(name, EndpointRole::kPrefill, port));
  }
  void add_decode(const std::string& name, std::uint16_t port) {
    tell(endpoint(name, EndpointRole::kDecode, port));
  }

  static std::uint64_t live(const std::unique_ptr<SelectionService>& service) {
    return service->stats().live_reservations;
  }
  std::uint64_t prefill_tokens() const { return sum(*prefill, &WorkerLoad::active_prefill_tokens); }
  std::uint64_t decode_blocks() const { return sum(*destination, &WorkerLoad::active_decode_blocks); }
  static std::uint64_t sum(const SelectionService& service, std::uint64_t WorkerLoad::*field) {
    std::uint64_t total = 0;
    for (const auto& partition : service.loads()) {
      for (const auto& load : partition.loads) total += load.*field;
    }
    return total;
  }

  SteadyTime now{std::chrono::hours(1)};
  std::uint64_t random = 0;
  std::optional<double> prefill_queue_threshold;
  std::optional<double> decode_queue_threshold;
  PlanningConfig config;
  std::unique_ptr<SelectionService> prefill;
  std::unique_ptr<SelectionService> destination;
  Selectors selectors;
  std::unique_ptr<WorkerDirectory> directory;
  PlanLedger ledger;
};

}  // namespace handoff::epp
