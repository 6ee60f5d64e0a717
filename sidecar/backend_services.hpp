// The sidecar's table of services for one backend instance.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shared/backend_abi/decode_backend.h"
#include "shared/json/object_scan.hpp"
#include "shared/telemetry/rate_limited_warning.hpp"
#include "sidecar/counters.hpp"

namespace handoff::sidecar {

/// Members of a scan in the form that crosses the boundary. Views into the scan.
handoff_object to_abi(const json::ObjectScan& scan, json::ScanStatus status, std::string_view text,
                      std::vector<handoff_member>& members);

/// Implements handoff_host_api: JSON scans, randomness, warnings and counts here, the actions in
/// disaggregated_exchange.cpp. One per loop, outlives the backend instance.
class BackendServices {
 public:
  explicit BackendServices(Counters& counters);
  const handoff_host_api& api() const { return table_.api; }

  /// Frees the scans of the entry that has just returned.
  void end_entry() { scans_used_ = 0; }

 private:
  // The backend hands back the pointer to `api`; `self` stands right behind it.
  struct Table {
    handoff_host_api api;
    BackendServices* self;
  };
  struct Scan {
    json::ObjectScan object;
    std::vector<handoff_member> members;
  };
  static BackendServices& self_of(const handoff_host_api* host);
  static handoff_status json(const handoff_host_api* host, handoff_bytes text, handoff_object* out);
  static void random(const handoff_host_api* host, void* out, std::size_t size);
  static void warn(const handoff_host_api* host, handoff_bytes key, handoff_bytes message);
  static void count(const handoff_host_api* host, handoff_bytes name);

  Table table_;
  Counters& counters_;
  std::vector<std::unique_ptr<Scan>> scans_;
  std::size_t scans_used_ = 0;
  std::map<std::string, telemetry::RateLimitedWarning, std::less<>> warnings_;  // by key
};

/// Fills in the actions (start, cancel, relay, ...), which need an exchange.
void install_actions(handoff_host_api& api);

}  // namespace handoff::sidecar
