#include "config.hpp"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <map>

namespace handoff::mock {
namespace {

const std::map<std::string, EngineKind>& engine_kinds() {
  static const std::map<std::string, EngineKind> table{
      {"vllm", EngineKind::kVllm}, {"sglang", EngineKind::kSglang}, {"trtllm", EngineKind::kTrtllm}};
  return table;
}

// Loopback, or anything in a container. 127.0.0.2 and so on are hosts of their own, which may have equal
// ports.
std::string refused_address(const std::string& text) {
  const bool ipv4_loopback = text.starts_with("127.") && text.find_first_not_of("0123456789.") == text.npos;
  if (ipv4_loopback || text == "::1" || text == "localhost" || text == "0.0.0.0") return {};
  return "accepts 127.x.x.x, ::1, localhost, 0.0.0.0";
}

struct RawTimes {
  std::int64_t prefill_us = 0;
  std::int64_t decode_us = 0;
  std::int64_t ttft_ms = 0;
  std::int64_t kv_load_ms = 0;
  std::int64_t keep_alive_ms = 5000;
};

void add_options(CLI::App& app, MockConfig& config, RawTimes& times) {
  const std::map<std::string, Role> roles{{"producer", Role::kProducer},
                                          {"consumer", Role::kConsumer},
                                          {"both", Role::kBoth},
                                          {"none", Role::kNone}};
  const std::map<std::string, GenerateParams> places{{"top-level", GenerateParams::kTopLevel},
                                                     {"extra-args", GenerateParams::kExtraArgs},
                                                     {"both", GenerateParams::kBoth}};
  const std::map<std::string, LoadFailurePolicy> policies{{"fail", LoadFailurePolicy::kFail},
                                                          {"recompute", LoadFailurePolicy::kRecompute}};
  app.add_option("--engine", config.engine)->transform(CLI::CheckedTransformer(engine_kinds()));
  app.add_option("--role", config.role)->transform(CLI::CheckedTransformer(roles));
  app.add_option("--bind", config.bind)->check(CLI::Validator(refused_address, "ADDR"));
  app.add_option("--port", config.port);
  app.add_option("--side-channel-port", config.side_channel_port);
  app.add_option("--control-port", config.control_port);
  app.add_option("--side-channel-host", config.side_channel_host);
  app.add_option("--model", config.models)->allow_extra_args(false);
  app.add_option("--api-key", config.api_key);
  app.add_option("--block-size", config.block_size)->check(CLI::Range(1, 4096));
  app.add_option("--blocks", config.blocks)->check(CLI::Range(1, 16777216));
  app.add_option("--max-model-len", config.max_model_len)->check(CLI::Range(2, 268435456));
  app.add_option("--max-running", config.max_running)->check(CLI::Range(1, 1048576));
  app.add_option("--kv-groups", config.kv_groups)->check(CLI::Range(1, 64));
  app.add_option("--data-parallel-size", config.data_parallel_size)->check(CLI::Range(1, 1024));
  app.add_option("--default-max-tokens", config.default_max_tokens)->check(CLI::Range(1, 1048576));
  app.add_flag("--prefix-caching", config.prefix_caching);
  app.add_flag("--one-prefill-at-a-time", config.one_prefill_at_a_time);
  app.add_flag("--flat-block-ids", config.flat_block_ids);
  app.add_flag("--null-params-on-stop", config.null_params_on_stop);
  app.add_flag("--enable-request-id-headers", config.request_id_headers);
  app.add_flag("--verbose", config.verbose);
  app.add_option("--generate-params", config.generate_params)->transform(CLI::CheckedTransformer(places));
  app.add_option("--kv-load-failure-policy", config.load_failure_policy)
      ->transform(CLI::CheckedTransformer(policies));
  app.add_option("--time-scale", config.time_scale)->check(CLI::Range(1e-6, 1e6));
  app.add_option("--prefill-us-per-token", times.prefill_us)->check(CLI::NonNegativeNumber);
  app.add_option("--decode-us-per-token", times.decode_us)->check(CLI::NonNegativeNumber);
  app.add_option("--ttft-ms", times.ttft_ms)->check(CLI::NonNegativeNumber);
  app.add_option("--kv-load-ms", times.kv_load_ms)->check(CLI::NonNegativeNumber);
  app.add_option("--keep-alive-ms", times.keep_alive_ms)->check(CLI::PositiveNumber);
  app.add_option("--auth-key", config.auth_key);
  app.add_flag("--prompt-ids-base64", config.prompt_ids_base64);
  app.add_flag("--double-done", config.double_done);
  app.add_option("--faults", config.faults_json);
  app.add_option("--seed", config.seed);
  app.add_option("--engine-id", config.engine_id);
}

void add_kv_event_options(CLI::App& app, MockConfig& config) {
  const std::map<std::string, KvEventFormat> formats{{"vllm-2025-04", KvEventFormat::kVllm2025April},
                                                     {"vllm-2025-09", KvEventFormat::kVllm2025September},
                                                     {"vllm-2025-12", KvEventFormat::kVllm2025December},
                                                     {"vllm-2026-02", KvEventFormat::kVllm2026February},
                                                     {"vllm-2026-04", KvEventFormat::kVllm2026April},
                                                     {"vllm-2026-05", KvEventFormat::kVllm2026May},
                                                     {"vllm-map", KvEventFormat::kVllmMap},
                                                     {"sglang-array", KvEventFormat::kSglangArray},
                                                     {"sglang-map", KvEventFormat::kSglangMap}};
  const std::map<std::string, KvHashKind> kinds{{"int", KvHashKind::kInt}, {"bytes", KvHashKind::kBytes}};
  const std::map<std::string, TokenizerApi> apis{{"vllm", TokenizerApi::kVllm},
                                                 {"sglang", TokenizerApi::kSglang}};
  app.add_flag("--kv-events", config.kv_events);
  app.add_option("--kv-event-port", config.kv_event_port);
  app.add_option("--kv-replay-port", config.kv_replay_port);
  app.add_option("--kv-replay-batches", config.kv_replay_batches)->check(CLI::Range(1, 10000000));
  app.add_flag("!--kv-replay-without-topic", config.kv_replay_topic);
  app.add_option("--kv-topic", config.kv_topic);
  app.add_option("--kv-event-format", config.kv_event_format)->transform(CLI::CheckedTransformer(formats));
  app.add_option("--kv-hashes", config.kv_hash_kind)->transform(CLI::CheckedTransformer(kinds));
  app.add_option("--tokenizer-api", config.tokenizer_api)->transform(CLI::CheckedTransformer(apis));
}

}  // namespace

const char* engine_name(EngineKind kind) {
  for (const auto& [name, value] : engine_kinds()) {
    if (value == kind) return name.c_str();
  }
  return "";
}

const char* role_name(Role role) {
  switch (role) {
    case Role::kProducer:
      return "producer";
    case Role::kConsumer:
      return "consumer";
    case Role::kBoth:
      return "both";
    case Role::kNone:
      return "none";
  }
  return "none";
}

MockConfig parse_command_line(int argc, char** argv) {
  MockConfig config;
  RawTimes times;
  CLI::App app{"A mock inference engine for tests of prefill/decode routing"};
  add_options(app, config, times);
  add_sglang_options(app, config.sglang);
  add_vllm_options(app, config.vllm);
  add_kv_event_options(app, config);
  // The same names in a file, one `name = value` a line; what is on the command line wins.
  app.set_config("--config");
  app.allow_config_extras(CLI::config_extras_mode::error);
  try {
    app.parse(argc, argv);
    if (config.kv_events && !config.prefix_caching)
      throw CLI::ValidationError("--kv-events", "needs --prefix-caching");
    check_vllm_options(config.vllm);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  if (config.models.empty()) config.models = {"mock-model"};
  if (config.bind == "localhost") config.bind = "127.0.0.1";
  if (config.side_channel_host.empty())
    config.side_channel_host = config.bind == "0.0.0.0" ? "127.0.0.1" : config.bind;
  config.prefill_per_token = std::chrono::microseconds(times.prefill_us);
  config.decode_per_token = std::chrono::microseconds(times.decode_us);
  config.ttft = std::chrono::milliseconds(times.ttft_ms);
  config.kv_load = std::chrono::milliseconds(times.kv_load_ms);
  config.keep_alive = std::chrono::milliseconds(times.keep_alive_ms);
  return config;
}

}  // namespace handoff::mock
