#include "vllm_config.hpp"

#include <CLI/CLI.hpp>
#include <map>

namespace handoff::mock {
namespace {

const std::map<std::string, KvConnectorKind>& connector_kinds() {
  static const std::map<std::string, KvConnectorKind> table{
      {"nixl", KvConnectorKind::kNixl},
      {"nixl-push", KvConnectorKind::kNixlPush},
      {"mooncake", KvConnectorKind::kMooncake},
      {"shared-storage", KvConnectorKind::kSharedStorage},
      {"offloading", KvConnectorKind::kOffloading}};
  return table;
}

}  // namespace

const char* kv_connector_name(KvConnectorKind kind) {
  for (const auto& [name, value] : connector_kinds()) {
    if (value == kind) return name.c_str();
  }
  return "";
}

void add_vllm_options(CLI::App& app, VllmConfig& config) {
  app.add_option("--kv-connector", config.connector)->transform(CLI::CheckedTransformer(connector_kinds()));
  app.add_option("--mooncake-bootstrap-port", config.bootstrap_port);
  app.add_option("--shared-storage-path", config.storage_path);
}

void check_vllm_options(const VllmConfig& config) {
  const bool has_store = config.connector == KvConnectorKind::kSharedStorage;
  if (has_store && config.storage_path.empty())
    throw CLI::ValidationError("--kv-connector", "shared-storage needs --shared-storage-path");
}

}  // namespace handoff::mock
