// What one mock engine is told on its command line. Read-only after start-up.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv_event_format.hpp"
#include "sglang_config.hpp"
#include "vllm_config.hpp"

namespace handoff::mock {

// Grows with each personality.
enum class EngineKind { kVllm, kSglang, kTrtllm };
enum class Role { kProducer, kConsumer, kBoth, kNone };
enum class GenerateParams { kTopLevel, kExtraArgs, kBoth };
enum class LoadFailurePolicy { kFail, kRecompute };
// Whose tokenizer endpoints: vLLM's render, or SGLang's /v1/tokenize and renderer.
enum class TokenizerApi { kVllm, kSglang };

struct MockConfig {
  EngineKind engine = EngineKind::kVllm;
  Role role = Role::kBoth;
  std::string bind = "127.0.0.1";
  std::uint16_t port = 0;
  std::uint16_t side_channel_port = 0;
  std::uint16_t control_port = 0;
  std::string side_channel_host;
  std::vector<std::string> models;
  std::string api_key;

  std::int64_t block_size = 16;
  std::int64_t blocks = 8192;
  std::int64_t max_model_len = 131072;
  std::int64_t max_running = 256;
  std::int64_t kv_groups = 1;
  std::int64_t data_parallel_size = 1;
  std::int64_t default_max_tokens = 16;
  bool prefix_caching = false;
  bool one_prefill_at_a_time = false;
  bool flat_block_ids = false;
  bool null_params_on_stop = false;
  bool request_id_headers = false;
  bool verbose = false;
  GenerateParams generate_params = GenerateParams::kBoth;
  LoadFailurePolicy load_failure_policy = LoadFailurePolicy::kFail;

  TokenizerApi tokenizer_api = TokenizerApi::kVllm;

  bool kv_events = false;
  std::uint16_t kv_event_port = 0;
  std::optional<std::uint16_t> kv_replay_port;
  std::int64_t kv_replay_batches = 10000;
  bool kv_replay_topic = true;
  std::string kv_topic;
  KvEventFormat kv_event_format = KvEventFormat::kVllmMap;
  KvHashKind kv_hash_kind = KvHashKind::kInt;

  double time_scale = 1.0;
  std::chrono::microseconds prefill_per_token{0};
  std::chrono::microseconds decode_per_token{0};
  std::chrono::milliseconds ttft{0};
  std::chrono::milliseconds kv_load{0};
  std::chrono::milliseconds keep_alive{5000};

  std::string auth_key;            // trtllm: internal_request_auth_key
  bool prompt_ids_base64 = false;  // trtllm
  bool double_done = false;        // trtllm

  std::string faults_json;
  std::uint64_t seed = 1;
  std::string engine_id;

  SglangConfig sglang;
  VllmConfig vllm;

  // The three times of the lease protocol, after scaling.
  std::chrono::microseconds lease() const { return scaled(30.0); }
  std::chrono::microseconds lease_extension() const { return scaled(20.0); }
  std::chrono::microseconds heartbeat_interval() const { return scaled(5.0); }

  // A prompt longer than the pool could never be scheduled.
  std::int64_t context_limit() const {
    const std::int64_t pool = blocks * block_size;
    return max_model_len < pool ? max_model_len : pool;
  }

  // A time of the real engine, after --time-scale.
  std::chrono::microseconds scaled(double seconds) const {
    return std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6 * time_scale));
  }
};

const char* engine_name(EngineKind kind);
const char* role_name(Role role);

// Parses the command line. Ends the process (exit code 0 for --help, 2 for a mistake) instead of returning an
// error: it is called from main() only.
MockConfig parse_command_line(int argc, char** argv);

}  // namespace handoff::mock
