#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "epp/discovery/endpoint_source.hpp"
#include "epp/discovery/health_tracker.hpp"

namespace handoff::epp {

struct FileDiscoveryOptions {
  std::string path;
  // Endpoints need a role; else one that is given is ignored.
  bool disaggregated = false;
  std::chrono::milliseconds health_interval{1000};
  std::chrono::milliseconds health_timeout{1000};
  HealthThresholds thresholds;
  // DNS names are resolved again, and the file is read again, this often.
  std::chrono::milliseconds refresh_interval{30'000};
};

// Endpoints from a watched YAML file (see README.md), their names resolved and their health probed. Owns one
// thread, on which everything happens.
//
// Reads the file at once: null, and `error` says why, when it is missing or wrong. Later a wrong file is
// logged and the set stays as it was.
std::unique_ptr<EndpointSource> make_file_endpoint_source(FileDiscoveryOptions options, std::string& error);

}  // namespace handoff::epp
