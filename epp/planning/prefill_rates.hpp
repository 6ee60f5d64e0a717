#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "epp/selection/worker_record.hpp"

namespace handoff::epp {

// How fast each worker prefills, learned from requests whose first byte tells when their prefill was over.
// Used for those whose first byte doesn't.
//
// Threads: any; one short lock.
class PrefillRates {
 public:
  void learn(WorkerId worker, std::uint64_t effective_tokens, std::chrono::nanoseconds took);
  // nullopt while nothing is known of the worker.
  std::optional<std::chrono::nanoseconds> expected(WorkerId worker, std::uint64_t effective_tokens) const;
  void forget(WorkerId worker);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<WorkerId, double> tokens_per_second_;
};

}  // namespace handoff::epp
