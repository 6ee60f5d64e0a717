// The sidecar's settings as typed values. The table that names, checks and documents them is in the .cpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "sidecar/prefill_allowlist.hpp"

namespace handoff::config {
class OptionTable;
}

namespace handoff::sidecar {

enum class OnPrefillFailure { error, decode_only };

struct SidecarConfig {
  // Listening
  std::string bind = "0.0.0.0";
  std::uint16_t port = 8000;
  std::string admin_port = "9091";  // a port, 0 for none, or auto
  std::uint64_t threads = 0;        // 0: one per core, at most 4
  std::uint64_t max_connections = 10000;

  // The decode engine
  std::uint16_t engine_port = 8001;
  std::string ready_path;                       // empty: the backend's
  std::chrono::milliseconds ready_interval{0};  // zero: the backend's

  // The backend
  std::string backend = "none";
  std::string backend_dir;  // empty: beside the program
  std::string model_name;

  // Prefill
  std::string prefill_endpoint;  // for requests without the routing header; empty: they run on decode alone
  std::string prefill_allowlist;
  bool allow_client_handoff = false;
  OnPrefillFailure on_prefill_failure = OnPrefillFailure::error;
  std::uint64_t prefill_retries = 0;
  std::chrono::milliseconds prefill_retry_backoff{200};
  std::chrono::milliseconds prefill_deadline{60000};
  std::uint64_t max_prefill_response_bytes = 32 * 1024 * 1024;

  // Limits and time-outs
  std::chrono::milliseconds connect_timeout{10000};
  std::chrono::milliseconds read_timeout{300000};
  std::chrono::milliseconds client_header_timeout{30000};
  std::chrono::milliseconds client_body_timeout{30000};
  std::chrono::milliseconds client_idle_timeout{3660000};
  std::uint64_t max_request_bytes = 32 * 1024 * 1024;
  std::uint64_t max_header_bytes = 64 * 1024;
  std::uint64_t max_held_bytes = 1024 * 1024;
  std::uint64_t max_buffered_bytes = 1024ull * 1024 * 1024;
  std::uint64_t max_idle_upstream = 1024;

  // Shutdown
  std::chrono::milliseconds drain_delay{5000};
  std::chrono::milliseconds drain_timeout{30000};

  std::string log_level = "info";
};

/// Declares every setting, bound to the fields of `config`, which must outlive the table.
void declare_options(config::OptionTable& table, SidecarConfig& config);

/// How many event loops `config` means.
std::size_t loop_count(const SidecarConfig& config);

}  // namespace handoff::sidecar
