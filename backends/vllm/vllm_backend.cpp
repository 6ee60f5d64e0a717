// The plugin's declarations and entry. Follow a request from begin_exchange in vllm_exchange.cpp.
#include <array>
#include <stdexcept>
#include <string>

#include "backends/vllm/endpoint.hpp"
#include "backends/vllm/vllm_exchange.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {
namespace {

constexpr std::string_view kProtocol = "vllm-v0.29.0-nixl-pull";
constexpr std::string_view kConnectorKey = "DYN_SIDECAR_VLLM_CONNECTOR";
constexpr std::string_view kOnMissingKey = "DYN_SIDECAR_ON_MISSING_HANDOFF";
constexpr std::string_view kProtocolKey = "DYN_VLLM_NIXL_PROTOCOL_VERSION";

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
        .accepts = sdk::bytes("nixl"),
        .default_value = sdk::bytes("nixl"),
        .help = sdk::bytes("KV connector of the vLLM engines."),
        .kind = HANDOFF_CONFIG_CHOICE,
        .flags = 0,
    },
    handoff_config_key{
        .name = sdk::bytes(kOnMissingKey),
        .accepts = sdk::bytes("decode-only,error"),
        .default_value = sdk::bytes("decode-only"),
        .help =
            sdk::bytes("What to do when prefill succeeds without a handoff: run the request on the decode "
                       "engine alone, or answer 502."),
        .kind = HANDOFF_CONFIG_CHOICE,
        .flags = 0,
    },
    handoff_config_key{
        .name = sdk::bytes(kProtocolKey),
        .accepts = sdk::bytes(kProtocol),
        .default_value = sdk::bytes(kProtocol),
        .help = sdk::bytes("Protocol revision that the deployment expects; the start is refused unless this "
                           "plugin speaks it."),
        .kind = HANDOFF_CONFIG_CHOICE,
        .flags = 0,
    },
};

class VllmBackend {
 public:
  VllmBackend(sdk::Host host, const sdk::Config& config) : host_(host) {
    require(config, kConnectorKey, "nixl");
    require(config, kProtocolKey, kProtocol);
    const auto on_missing = config.get(kOnMissingKey);
    if (on_missing == "error") {
      settings_.on_missing_handoff = OnMissingHandoff::error;
    } else if (on_missing != "decode-only") {
      refuse(kOnMissingKey, "decode-only, error");
    }
  }

  std::unique_ptr<sdk::Exchange> begin(const handoff_request& request, sdk::Turn& turn) {
    return begin_exchange(settings_, host_, request, turn);
  }

 private:
  static void require(const sdk::Config& config, std::string_view key, std::string_view only) {
    if (config.get(key) != only) refuse(key, only);
  }
  [[noreturn]] static void refuse(std::string_view key, std::string_view accepted) {
    throw std::invalid_argument(std::string(key) + " accepts: " + std::string(accepted));
  }

  sdk::Host host_;
  Settings settings_;
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
