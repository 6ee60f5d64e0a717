// handoff-sidecar: read the settings, load the backend, bind, run until told to stop.
#include <malloc.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "shared/backend_abi/decode_backend.h"
#include "shared/config/environment.hpp"
#include "shared/telemetry/log.hpp"
#include "sidecar/sidecar.hpp"
#include "sidecar/start_up.hpp"

namespace {

using namespace handoff;

constexpr int kBadConfiguration = 2;

// Each exchange takes up to three descriptors, and the usual soft limit is made for shells.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// Bodies come and go by the hundred kilobyte. Left alone, the allocator would give such memory back to the
// system and get it again, page by page, for each request.
void keep_freed_memory() {
  constexpr int kMapFrom = 4 * 1024 * 1024;
  constexpr int kTrimFrom = 16 * 1024 * 1024;
  mallopt(M_MMAP_THRESHOLD, kMapFrom);
  mallopt(M_TRIM_THRESHOLD, kTrimFrom);
}

/// What was chosen of the settings by which a backend is several: its connector, say, or its schedule.
std::string backend_choices(const sidecar::StartUp& start) {
  std::string out;
  if (!start.plan.backend) return out;
  const auto keys = start.plan.backend->config_keys();
  for (std::size_t i = 0; i < keys.size() && i < start.backend_values.size(); ++i) {
    const bool is_choice = keys[i].kind == HANDOFF_CONFIG_CHOICE && !keys[i].secret;
    if (!is_choice || keys[i].accepts.find(',') == std::string_view::npos) continue;
    if (!out.empty()) out += ' ';
    out.append(keys[i].name).append("=").append(start.backend_values[i]);
  }
  return out;
}

void log_start(const sidecar::StartUp& start, const sidecar::Sidecar& running) {
  const auto& config = start.plan.config;
  // The first line, whatever the level: whoever started us with port 0 reads the ports from it.
  const auto level = telemetry::parse_level(config.log_level).value_or(telemetry::Level::info);
  telemetry::init_logging(telemetry::Level::info);
  telemetry::LogLine(telemetry::Level::info, "listening")
      .field("address", config.bind)
      .field("port", running.port())
      .field("admin_port", running.admin_port())
      .field("engine", start.plan.local_engine.authority)
      .field("backend", start.plan.backend ? start.plan.backend->describe() : "none")
      .field("backend_settings", backend_choices(start))
      .field("model", config.model_name);
  telemetry::flush_logging();
  telemetry::init_logging(level);
  for (const auto& warning : start.warnings) {
    telemetry::LogLine(telemetry::Level::warn, "configuration").field("warning", warning);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const auto start = sidecar::prepare(std::vector<std::string>(argv + 1, argv + argc),
                                        config::Environment::from_process());
    if (start.what == sidecar::StartUp::What::print_and_exit) {
      std::fputs(start.text.c_str(), stdout);
      // Who asks for the settings wants to know what a start would say of them.
      for (const auto& warning : start.warnings) std::fprintf(stderr, "# warning: %s\n", warning.c_str());
      return 0;
    }
    if (start.what == sidecar::StartUp::What::refuse) {
      std::fputs(start.text.c_str(), stderr);
      return kBadConfiguration;
    }
    raise_descriptor_limit();
    keep_freed_memory();
    sidecar::Sidecar running(start.plan, start.backend_values);
    log_start(start, running);
    running.run();
    telemetry::flush_logging();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "handoff-sidecar: %s\n", error.what());
    return kBadConfiguration;
  }
}
