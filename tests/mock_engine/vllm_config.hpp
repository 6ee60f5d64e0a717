// Flags that only the vLLM personality reads: which KV connector the engine runs with, and what that needs.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace handoff::mock {

// --kv-transfer-config's `kv_connector`.
enum class KvConnectorKind {
  kNixl,           // NixlConnector: D pulls
  kNixlPush,       // NixlPushConnector: D registers, P writes
  kMooncake,       // MooncakeConnector
  kSharedStorage,  // a store that P fills and D reads, as LMCache's
  kOffloading,     // OffloadingConnector with a P2P tier
};

struct VllmConfig {
  KvConnectorKind connector = KvConnectorKind::kNixl;
  std::uint16_t bootstrap_port = 0;  // Mooncake: VLLM_MOONCAKE_BOOTSTRAP_PORT
  std::string storage_path;          // shared storage: a directory of both engines
};

const char* kv_connector_name(KvConnectorKind kind);
void add_vllm_options(CLI::App& app, VllmConfig& config);
// Throws CLI::ValidationError for flags that do not go together.
void check_vllm_options(const VllmConfig& config);

}  // namespace handoff::mock
