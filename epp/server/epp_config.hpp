#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "epp/ext_proc/ext_proc_stream.hpp"
#include "epp/planning/planning_config.hpp"
#include "epp/selection/selector_config.hpp"

namespace handoff::config {
class OptionTable;
}

namespace handoff::epp {

enum class TopologyMode : std::uint8_t { kAggregated, kDisaggregated };
enum class TokenizerProtocol : std::uint8_t { kNone, kVllmRender, kSglangRenderer, kSglangTokenize };

// The weights and limits that all selectors of the program share; names and defaults are Dynamo's.
struct RouterSettings {
  CostConfig cost;
  OverloadConfig overload;
  std::optional<double> decode_busy_threshold;
  std::string policy_path;  // empty: one class
  bool track_active_blocks = true;
  bool track_output_blocks = true;
  bool track_prefill_tokens = true;
  bool assume_kv_reuse = true;
  std::uint32_t active_sequence_stride = 1;
  std::uint64_t overlap_refresh_after_secs = 10;
  std::optional<double> queue_threshold;
  QueueOrder queue_policy = QueueOrder::kFcfs;
  std::uint64_t ttl_secs = 120;
  std::uint64_t active_request_expiry_secs = 300;
  AffinityMode affinity = AffinityMode::kOff;
  std::uint64_t affinity_ttl_secs = 3600;
  std::uint64_t event_threads = 4;
};

// The program's settings as typed values. The table that names, checks and documents them is in the .cpp.
struct EppConfig {
  std::string mode = "standalone";

  // Listening
  std::string bind = "0.0.0.0";
  std::uint16_t port = 9002;
  std::uint16_t health_port = 9003;
  bool secure_serving = true;
  std::string tls_certificate_path;
  std::string tls_key_path;
  std::uint64_t threads = 0;  // 0: one per core, at most 8
  bool debug_report = false;

  // Bounds
  ExtProcLimits limits;
  std::chrono::milliseconds request_body_timeout{60000};
  std::uint64_t retry_after_secs = 1;

  // Endpoints
  std::string endpoints_file;
  TopologyMode topology = TopologyMode::kAggregated;
  std::chrono::milliseconds health_interval{1000};
  std::chrono::milliseconds health_timeout{1000};
  std::uint64_t unhealthy_after = 3;
  std::uint64_t healthy_after = 1;

  // Tokenization
  TokenizerProtocol tokenizer_protocol = TokenizerProtocol::kNone;
  std::string tokenizer_url;
  std::chrono::milliseconds tokenization_timeout{5000};
  std::uint64_t tokenizer_max_response = 16ULL << 20;
  std::uint64_t tokenizer_cache = 64ULL << 20;

  PlanningConfig planning;
  RouterSettings router;

  // Shutdown and logs
  std::chrono::milliseconds drain_delay{5000};
  std::chrono::milliseconds drain_timeout{60000};
  std::string log_level = "info";
};

// Declares every setting, bound to the fields of `config`, which must outlive the table.
void declare_options(config::OptionTable& table, EppConfig& config);

// Every setting with its default, as Markdown tables.
std::string epp_settings_markdown();

}  // namespace handoff::epp
