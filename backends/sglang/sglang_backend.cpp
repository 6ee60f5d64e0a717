// The plugin's declarations and entry. Follow a request from begin_exchange in sglang_exchange.cpp.
#include <array>
#include <charconv>
#include <stdexcept>
#include <string>

#include "backends/sglang/sglang_exchange.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sglang {
namespace {

constexpr std::string_view kProtocol = "sglang-v0.5.19-bootstrap";
constexpr std::string_view kPortKey = "DYN_SIDECAR_SGLANG_BOOTSTRAP_PORT";
constexpr std::string_view kOldPortKey = "SGLANG_BOOTSTRAP_PORT";

constexpr std::array kRoutes{
    handoff_route{sdk::bytes("POST"), sdk::bytes(kChatPath)},
    handoff_route{sdk::bytes("POST"), sdk::bytes(kCompletionsPath)},
    handoff_route{sdk::bytes("POST"), sdk::bytes(kGeneratePath)},
    // Only to be refused where a prefill endpoint is given.
    handoff_route{sdk::bytes("POST"), sdk::bytes(kResponsesPath)},
    handoff_route{sdk::bytes("POST"), sdk::bytes(kMessagesPath)},
};

constexpr std::array kReservedFields{
    handoff_reserved_field{sdk::bytes("bootstrap_host")},
    handoff_reserved_field{sdk::bytes("bootstrap_port")},
    handoff_reserved_field{sdk::bytes("bootstrap_room")},
    handoff_reserved_field{sdk::bytes("bootstrap_pair_key")},
    handoff_reserved_field{sdk::bytes("bootstrap_attempt_id")},
};

constexpr std::array kConfigKeys{
    handoff_config_key{
        .name = sdk::bytes(kPortKey),
        .accepts = {},
        .default_value = {},
        .help =
            sdk::bytes("Port of the prefill engines' bootstrap servers; without it the engines are asked."),
        .kind = HANDOFF_CONFIG_PORT,
        .flags = 0,
    },
    handoff_config_key{
        .name = sdk::bytes(kOldPortKey),
        .accepts = {},
        .default_value = {},
        .help = sdk::bytes("The same, by the name that other sidecars use."),
        .kind = HANDOFF_CONFIG_PORT,
        .flags = 0,
    },
};

std::uint32_t port_in(std::string_view text) {
  std::uint32_t port = 0;
  std::from_chars(text.data(), text.data() + text.size(), port);
  return port;
}

class SglangBackend {
 public:
  SglangBackend(sdk::Host host, const sdk::Config& config) : host_(host) {
    const auto port = config.get(kPortKey);
    const auto old_port = config.get(kOldPortKey);
    if (!port.empty() && !old_port.empty() && port != old_port) {
      throw std::invalid_argument(std::string(kPortKey) + " and " + std::string(kOldPortKey) +
                                  " name different ports");
    }
    settings_.bootstrap_port = port_in(port.empty() ? old_port : port);
  }

  std::unique_ptr<sdk::Exchange> begin(const handoff_request& request, sdk::Turn& turn) {
    return begin_exchange({settings_, host_, memory_}, request, turn);
  }

 private:
  sdk::Host host_;
  Settings settings_;
  EngineMemory memory_;
};

constexpr sdk::Declaration kDeclaration{
    .name = "sglang",
    .protocol = kProtocol,
    .routes = kRoutes,
    .reserved_fields = kReservedFields,
    .config_keys = kConfigKeys,
    // It runs a generation, which takes a second when all is well.
    .health_path = "/health",
    .health_interval_ms = 10000,
    .engine_idle_ms = 4000,  // the engine's HTTP server closes idle connections after 5 s
    .flags = HANDOFF_BACKEND_NEEDS_PREFILL,
};

}  // namespace
}  // namespace handoff::sglang

HANDOFF_DEFINE_BACKEND(handoff::sglang::SglangBackend, handoff::sglang::kDeclaration)
