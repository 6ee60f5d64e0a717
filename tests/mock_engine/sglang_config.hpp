// Flags that only the SGLang personality reads. Names follow the real engine's where it has them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace handoff::mock {

enum class SglangMode { kNull, kPrefill, kDecode };

struct SglangConfig {
  SglangMode mode = SglangMode::kNull;
  std::uint16_t bootstrap_port = 0;
  // What /server_info says instead of the port that is listened on; 0: the truth.
  std::int64_t announced_bootstrap_port = 0;
  std::string version = "0.5.19";
  std::int64_t max_queued = 0;  // 0: no limit
  // Between HTTP admission and the scheduler. An abort that comes in this window is lost.
  std::chrono::milliseconds admission{0};
  bool incremental_streaming = false;
  // Usage says how much of the prompt was cached, if anything.
  bool cache_report = false;
  // Typed error headers, as the newest releases send them.
  bool typed_errors = false;
};

const char* sglang_mode_name(SglangMode mode);
void add_sglang_options(CLI::App& app, SglangConfig& config);

}  // namespace handoff::mock
