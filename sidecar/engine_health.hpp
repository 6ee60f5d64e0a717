// Polls the decode engine's health for /ready.
#pragma once

#include <string>

#include "sidecar/loop_services.hpp"

namespace handoff::sidecar {

/// One GET per interval, on one loop; never part of a request. The result stands in Readiness.
class EngineHealth {
 public:
  EngineHealth(LoopServices& services, std::string path, milliseconds interval);

  Awaitable<> run();
  void stop();

 private:
  Awaitable<bool> is_healthy();

  LoopServices& services_;
  std::string path_;
  milliseconds interval_;
  SteadyTimer timer_;
  UpstreamLeg* asking_ = nullptr;
  bool stopped_ = false;
};

}  // namespace handoff::sidecar
