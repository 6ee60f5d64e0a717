// The plugin's declarations and entry. Follow a request from begin() to one of the two exchanges.
#include <array>
#include <memory>
#include <stdexcept>
#include <string>

#include "backends/trtllm/context_first_exchange.hpp"
#include "backends/trtllm/context_info.hpp"
#include "backends/trtllm/endpoint.hpp"
#include "backends/trtllm/generation_first_exchange.hpp"
#include "backends/trtllm/request_shape.hpp"
#include "backends/trtllm/settings.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {
namespace {

constexpr std::string_view kProtocol = "trtllm-1.3.0rc24";
constexpr std::string_view kScheduleKey = "DYN_SIDECAR_TRTLLM_SCHEDULE";
constexpr std::string_view kAuthKeyFileKey = "DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE";

constexpr std::array kRoutes{
    handoff_route{sdk::bytes("POST"), sdk::bytes(kChatPath)},
    handoff_route{sdk::bytes("POST"), sdk::bytes(kCompletionsPath)},
};

// The handoff itself, and its parts where a release or a proxy might take them at the top level.
constexpr std::array kReservedFields{
    handoff_reserved_field{sdk::bytes("disaggregated_params")},
    handoff_reserved_field{sdk::bytes("prompt_token_ids_b64")},
    handoff_reserved_field{sdk::bytes("ctx_info_endpoint")},
    handoff_reserved_field{sdk::bytes("encoded_opaque_state")},
};

constexpr std::array kConfigKeys{
    handoff_config_key{
        .name = sdk::bytes(kScheduleKey),
        .accepts = sdk::bytes("context-first,generation-first"),
        .default_value = sdk::bytes("context-first"),
        .help = sdk::bytes("Which TensorRT-LLM engine is asked first. generation-first needs context engines "
                           "whose /server_info has a ctx_info_endpoint."),
        .kind = HANDOFF_CONFIG_CHOICE,
        .flags = 0,
    },
    handoff_config_key{
        .name = sdk::bytes(kAuthKeyFileKey),
        .accepts = {},
        .default_value = {},
        .help = sdk::bytes("File with the engines' internal_request_auth_key, with which handoffs are "
                           "signed: one line, read "
                           "at start only."),
        .kind = HANDOFF_CONFIG_FILE,
        .flags = HANDOFF_CONFIG_SECRET,
    },
    missing_handoff::kConfigKey,
};

[[noreturn]] void refuse(std::string_view key, std::string_view rule) {
  throw std::invalid_argument(std::string(key) + " " + std::string(rule));
}

Settings read_settings(const sdk::Config& config) {
  Settings settings;
  const auto schedule = config.get(kScheduleKey);
  if (schedule == "generation-first") {
    settings.schedule = Schedule::generation_first;
  } else if (schedule != "context-first") {
    refuse(kScheduleKey, "accepts: context-first, generation-first");
  }
  settings.on_missing_handoff = missing_handoff::read_policy(config);
  const auto file = config.get(kAuthKeyFileKey);
  settings.auth_key = file.substr(0, file.find_last_not_of("\r\n") + 1);
  if (!file.empty() && settings.auth_key.find_first_not_of(" \t\r\n") == std::string::npos)
    refuse(kAuthKeyFileKey, "names a file without a key");
  if (settings.auth_key.find_first_of("\r\n") != std::string::npos)
    refuse(kAuthKeyFileKey, "names a file of more than one line; accepts: a file with the key alone");
  return settings;
}

class TrtllmBackend {
 public:
  TrtllmBackend(sdk::Host host, const sdk::Config& config) : host_(host), settings_(read_settings(config)) {}

  std::unique_ptr<sdk::Exchange> begin(const handoff_request& request, sdk::Turn& turn) {
    const auto headers = leg_headers();
    if (request.has_prefill == 0) {
      turn.decode_only("no_prefill_endpoint", headers);
      return nullptr;
    }
    const sdk::Object body(request.body);
    if (!body.is_object()) {
      turn.fail(
          {.status = 400, .code = "invalid_pd_request", .message = "The request body is not a JSON object."});
      return nullptr;
    }
    const Api api = api_of(sdk::view(request.path));
    if (const auto reason = decode_only_reason(host_, body, api); !reason.empty()) {
      turn.decode_only(reason, headers);
      return nullptr;
    }
    if (settings_.schedule == Schedule::generation_first) {
      auto exchange = std::make_unique<GenerationFirstExchange>(settings_, host_, memory_, request);
      exchange->start(request.now_ms, turn);
      return exchange;
    }
    auto exchange = std::make_unique<ContextFirstExchange>(settings_, host_, request, api);
    exchange->start_context(turn);
    return exchange;
  }

 private:
  sdk::Host host_;
  Settings settings_;
  ContextInfoMemory memory_;
};

constexpr sdk::Declaration kDeclaration{
    .name = "trtllm",
    .protocol = kProtocol,
    .routes = kRoutes,
    .reserved_fields = kReservedFields,
    .config_keys = kConfigKeys,
    .health_path = "/health",
    .health_interval_ms = 1000,
    .engine_idle_ms = 900,  // the vendor's own proxy keeps connections for 1 s because of resets
};

}  // namespace
}  // namespace handoff::trtllm

HANDOFF_DEFINE_BACKEND(handoff::trtllm::TrtllmBackend, handoff::trtllm::kDeclaration)
