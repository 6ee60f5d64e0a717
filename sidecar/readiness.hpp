// Whether this sidecar wants new work.
#pragma once

#include <atomic>

namespace handoff::sidecar {

/// Written by the loop that polls the engine and by shutdown, read by all loops.
class Readiness {
 public:
  void set_engine_healthy(bool healthy) { engine_healthy_.store(healthy, std::memory_order_relaxed); }
  void set_draining() { draining_.store(true, std::memory_order_relaxed); }
  bool engine_healthy() const { return engine_healthy_.load(std::memory_order_relaxed); }
  bool draining() const { return draining_.load(std::memory_order_relaxed); }
  bool ready() const { return engine_healthy() && !draining(); }

 private:
  std::atomic<bool> engine_healthy_{false};
  std::atomic<bool> draining_{false};
};

}  // namespace handoff::sidecar
