// handoff-epp: read the settings, find endpoints, serve ext_proc until told to stop.
#include <malloc.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "epp/discovery/file_endpoint_source.hpp"
#include "epp/server/epp_program.hpp"
#include "epp/server/start_up.hpp"
#include "epp/tokenization/http_tokenizer.hpp"
#include "shared/config/environment.hpp"
#include "shared/telemetry/log.hpp"

namespace {

using namespace handoff;
using namespace handoff::epp;

constexpr int kBadConfiguration = 2;

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

std::unique_ptr<EndpointSource> make_source(const EppConfig& config, std::string& error) {
  FileDiscoveryOptions options;
  options.path = config.endpoints_file;
  options.disaggregated = config.topology == TopologyMode::kDisaggregated;
  options.health_interval = config.health_interval;
  options.health_timeout = config.health_timeout;
  options.thresholds.unhealthy_after = static_cast<std::uint32_t>(config.unhealthy_after);
  options.thresholds.healthy_after = static_cast<std::uint32_t>(config.healthy_after);
  return make_file_endpoint_source(std::move(options), error);
}

TokenizerKind kind_of(TokenizerProtocol protocol) {
  if (protocol == TokenizerProtocol::kSglangRenderer) return TokenizerKind::kSglangRenderer;
  if (protocol == TokenizerProtocol::kSglangTokenize) return TokenizerKind::kSglangTokenize;
  return TokenizerKind::kVllmRender;
}

std::unique_ptr<Tokenizer> make_tokenizer(const EppConfig& config, std::string& error) {
  if (config.tokenizer_protocol == TokenizerProtocol::kNone) return nullptr;
  HttpTokenizerOptions options;
  options.kind = kind_of(config.tokenizer_protocol);
  options.url = config.tokenizer_url;
  options.base_model = config.planning.model_name;
  options.timeout = config.tokenization_timeout;
  options.max_response_bytes = config.tokenizer_max_response;
  options.cache_bytes = config.tokenizer_cache;
  return make_http_tokenizer(std::move(options), error);
}

int refuse(const std::string& why) {
  std::fprintf(stderr, "handoff-epp: cannot start: %s\n", why.c_str());
  return kBadConfiguration;
}

int run(EppConfig& config, const std::vector<std::string>& warnings) {
  prepare_process();  // before any thread
  std::string error;
  const auto tokenizer = make_tokenizer(config, error);
  if (!error.empty()) return refuse("DYN_EPP_TOKENIZER_SERVICE_URL: " + error);
  const auto source = make_source(config, error);
  if (source == nullptr) return refuse("DYN_EPP_ENDPOINTS_FILE: " + error);
  raise_descriptor_limit();
  keep_freed_memory();
  run_epp(config, *source, tokenizer.get(), warnings);
  telemetry::flush_logging();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    EppConfig config;
    const auto start = read_settings(std::vector<std::string>(argv + 1, argv + argc),
                                     config::Environment::from_process(), config);
    if (start.what == StartUp::What::run) return run(config, start.warnings);
    const bool refused = start.what == StartUp::What::refuse;
    std::fputs(start.text.c_str(), refused ? stderr : stdout);
    // Who asks for the settings wants to know what a start would say of them.
    for (const auto& warning : start.warnings) std::fprintf(stderr, "# warning: %s\n", warning.c_str());
    return refused ? kBadConfiguration : 0;
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}
