// The plugin's declarations and entry. Follow a request from begin_exchange in vllm_exchange.cpp.
#include <array>
#include <iterator>
#include <stdexcept>
#include <string>

#include "backends/json_text/json_text.hpp"
#include "backends/vllm/connector.hpp"
#include "backends/vllm/endpoint.hpp"
#include "backends/vllm/prefill_memory.hpp"
#include "backends/vllm/vllm_exchange.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {
namespace {

constexpr std::string_view kProtocol = "vllm-v0.29.0-nixl-pull";
constexpr std::string_view kConnectorKey = "DYN_SIDECAR_VLLM_CONNECTOR";
constexpr std::string_view kProtocolKey = "DYN_VLLM_NIXL_PROTOCOL_VERSION";
constexpr std::string_view kReuseTokensKey = "DYN_SIDECAR_VLLM_REUSE_TOKENS";
constexpr std::string_view kPushOrderKey = "DYN_SIDECAR_VLLM_PUSH_ORDER";
constexpr std::string_view kBootstrapPortKey = "DYN_SIDECAR_VLLM_MOONCAKE_BOOTSTRAP_PORT";
constexpr std::string_view kP2pPortKey = "DYN_SIDECAR_VLLM_P2P_PORT";

constexpr std::array kRoutes{
    handoff_route{sdk::bytes("POST"), sdk::bytes(kChatPath)},
    handoff_route{sdk::bytes("POST"), sdk::bytes(kCompletionsPath)},
    handoff_route{sdk::bytes("POST"), sdk::bytes(kResponsesPath)},
    handoff_route{sdk::bytes("POST"), sdk::bytes(kMessagesPath)},
    handoff_route{sdk::bytes("POST"), sdk::bytes(kGeneratePath)},
};

// All places that end in SamplingParams.extra_args["kv_transfer_params"], where the scheduler reads it.
constexpr std::array kReservedFields{
    handoff_reserved_field{sdk::bytes("kv_transfer_params")},
    handoff_reserved_field{sdk::bytes("sampling_params.extra_args.kv_transfer_params")},
    handoff_reserved_field{sdk::bytes("vllm_xargs.kv_transfer_params")},
};

constexpr std::array kConfigKeys{
    handoff_config_key{
        .name = sdk::bytes(kConnectorKey),
        .accepts = sdk::bytes(kConnectors),
        .default_value = sdk::bytes("nixl"),
        .help = sdk::bytes("KV connector of the vLLM engines."),
        .kind = HANDOFF_CONFIG_CHOICE,
        .flags = 0,
    },
    missing_handoff::kConfigKey,
    handoff_config_key{
        .name = sdk::bytes(kProtocolKey),
        .accepts = sdk::bytes(kProtocol),
        .default_value = sdk::bytes(kProtocol),
        .help = sdk::bytes("Protocol revision that the deployment expects; the start is refused unless this "
                           "plugin speaks it."),
        .kind = HANDOFF_CONFIG_CHOICE,
        .flags = 0,
    },
    handoff_config_key{
        .name = sdk::bytes(kReuseTokensKey),
        .accepts = {},
        .default_value = sdk::bytes("false"),
        .help = sdk::bytes(
            "Give decode the token ids that prefill made of a chat or of a completion's prompt, so that it "
            "does not apply the template and tokenize again. For the NIXL connectors; chats need vLLM of "
            "August 2026 or later."),
        .kind = HANDOFF_CONFIG_BOOL,
        .flags = 0,
    },
    handoff_config_key{
        .name = sdk::bytes(kPushOrderKey),
        .accepts = sdk::bytes("prefill-first,concurrent"),
        .default_value = sdk::bytes("prefill-first"),
        .help = sdk::bytes(
            "NIXL push: ask decode after prefill, or both at once where an earlier reply named the prefill "
            "engine's address. At once saves decode's queue and costs its KV blocks, for good, whenever a "
            "client leaves or prefill fails meanwhile (vLLM issue 46283)."),
        .kind = HANDOFF_CONFIG_CHOICE,
        .flags = 0,
    },
    handoff_config_key{
        .name = sdk::bytes(kBootstrapPortKey),
        .accepts = {},
        .default_value = sdk::bytes("8998"),
        .help = sdk::bytes("Port of the Mooncake bootstrap server on prefill hosts "
                           "(VLLM_MOONCAKE_BOOTSTRAP_PORT)."),
        .kind = HANDOFF_CONFIG_PORT,
        .flags = 0,
    },
    handoff_config_key{
        .name = sdk::bytes(kP2pPortKey),
        .accepts = {},
        .default_value = sdk::bytes("5710"),
        .help = sdk::bytes("Side channel of the offloading connector's P2P tier on prefill hosts, of rank 0 "
                           "(VLLM_P2P_SIDE_CHANNEL_PORT)."),
        .kind = HANDOFF_CONFIG_PORT,
        .flags = 0,
    },
};

class VllmBackend {
 public:
  VllmBackend(sdk::Host host, const sdk::Config& config) : host_(host) {
    settings_.connector = read_connector(config.get(kConnectorKey));
    settings_.reuse_tokens = config.get(kReuseTokensKey) == "true";
    const auto order = config.get(kPushOrderKey);
    if (order == "concurrent") {
      settings_.push_order = PushOrder::concurrent;
    } else if (order != "prefill-first") {
      refuse(kPushOrderKey, "prefill-first, concurrent");
    }
    settings_.bootstrap_port = read_port(config, kBootstrapPortKey);
    settings_.p2p_port = read_port(config, kP2pPortKey);
    require(config, kProtocolKey, kProtocol);
    settings_.on_missing_handoff = missing_handoff::read_policy(config);
  }

  std::unique_ptr<sdk::Exchange> begin(const handoff_request& request, sdk::Turn& turn) {
    return begin_exchange(settings_, host_, memory_, request, turn);
  }

 private:
  static void require(const sdk::Config& config, std::string_view key, std::string_view only) {
    if (config.get(key) != only) refuse(key, only);
  }
  static Connector read_connector(std::string_view value) {
    for (std::size_t i = 0; i < std::size(kConnectorNames); ++i) {
      if (kConnectorNames[i] == value) return static_cast<Connector>(i);
    }
    refuse(kConnectorKey, kConnectors);
  }
  static std::uint32_t read_port(const sdk::Config& config, std::string_view key) {
    const auto port = json_text::plain_integer(config.get(key), 65535);
    if (port < 1) refuse(key, "a port");
    return static_cast<std::uint32_t>(port);
  }
  [[noreturn]] static void refuse(std::string_view key, std::string_view accepted) {
    throw std::invalid_argument(std::string(key) + " accepts: " + std::string(accepted));
  }

  sdk::Host host_;
  Settings settings_;
  PrefillMemory memory_;
};

constexpr sdk::Declaration kDeclaration{
    .name = "vllm",
    .protocol = kProtocol,
    .routes = kRoutes,
    .reserved_fields = kReservedFields,
    .config_keys = kConfigKeys,
    .health_path = "/health",
    .health_interval_ms = 1000,
    .engine_idle_ms = 4000,  // the engine's HTTP server closes idle connections after 5 s
};

}  // namespace
}  // namespace handoff::vllm

HANDOFF_DEFINE_BACKEND(handoff::vllm::VllmBackend, handoff::vllm::kDeclaration)
