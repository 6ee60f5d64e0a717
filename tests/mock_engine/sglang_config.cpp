#include "sglang_config.hpp"

#include <CLI/CLI.hpp>
#include <map>

namespace handoff::mock {

const char* sglang_mode_name(SglangMode mode) {
  switch (mode) {
    case SglangMode::kNull:
      return "null";
    case SglangMode::kPrefill:
      return "prefill";
    case SglangMode::kDecode:
      return "decode";
  }
  return "null";
}

void add_sglang_options(CLI::App& app, SglangConfig& config) {
  const std::map<std::string, SglangMode> modes{
      {"null", SglangMode::kNull}, {"prefill", SglangMode::kPrefill}, {"decode", SglangMode::kDecode}};
  app.add_option("--disaggregation-mode", config.mode)->transform(CLI::CheckedTransformer(modes));
  app.add_option("--disaggregation-bootstrap-port", config.bootstrap_port);
  app.add_option("--announced-bootstrap-port", config.announced_bootstrap_port);
  app.add_option("--sglang-version", config.version);
  app.add_option("--max-queued-requests", config.max_queued)->check(CLI::NonNegativeNumber);
  app.add_option_function<std::int64_t>(
         "--admission-ms", [&config](std::int64_t ms) { config.admission = std::chrono::milliseconds(ms); })
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--incremental-streaming-output", config.incremental_streaming);
  app.add_flag("--enable-cache-report", config.cache_report);
  app.add_flag("--typed-errors", config.typed_errors);
}

}  // namespace handoff::mock
