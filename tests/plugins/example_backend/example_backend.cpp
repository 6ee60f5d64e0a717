// Prefill, then decode, for engines that share a cache of KV blocks: prefill fills it for decode.
#include <array>
#include <memory>
#include <stdexcept>
#include <string>

#include "shared/backend_abi/backend_sdk.hpp"

namespace {
namespace sdk = handoff::sdk;

constexpr std::uint32_t kPrefill = 1;  // ids of the legs: ours to choose
constexpr std::uint32_t kDecode = 2;

/// One request, from begin() to end().
class PrefillThenDecode final : public sdk::Exchange {
 public:
  void on_event(const handoff_event& event, sdk::Turn& turn) override {
    const bool failed = event.kind == HANDOFF_EVENT_LEG_FAILED;
    if (!failed && event.kind != HANDOFF_EVENT_LEG_DONE) return;   // END: nothing to clean up here
    if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) return;       // too late to answer otherwise
    if (failed) return turn.fail_with_leg(event.leg);              // the sidecar knows how to say it
    if (event.leg == kDecode) return;                              // relayed, whatever its status
    if (event.status != 200) return turn.fail_with_leg(kPrefill);  // prefill refused the request

    sdk::Leg decode;
    decode.id = kDecode;
    decode.role = HANDOFF_ROLE_DECODE;
    decode.target = HANDOFF_TARGET_LOCAL;
    decode.reply = HANDOFF_REPLY_RELAY;      // its reply is the client's answer
    decode.flags = HANDOFF_LEG_CLIENT_BODY;  // the request as the client sent it
    turn.start(decode);
  }
};

/// Created once per event loop. No locks, no globals, no I/O.
class ExampleBackend {
 public:
  ExampleBackend(sdk::Host, const sdk::Config& config)
      : prefill_tokens_(config.get("DYN_SIDECAR_EXAMPLE_PREFILL_TOKENS")) {
    if (prefill_tokens_ == "0") {  // stops the start with this message
      throw std::invalid_argument("DYN_SIDECAR_EXAMPLE_PREFILL_TOKENS must be at least 1");
    }
  }

  std::unique_ptr<sdk::Exchange> begin(const handoff_request& request, sdk::Turn& turn) {
    const sdk::Object body(request.body);
    if (request.has_prefill == 0 || !body.is_object()) {
      turn.decode_only(request.has_prefill == 0 ? "no_prefill" : "no_json_object");
      return nullptr;  // all is said: no event will need us
    }
    sdk::BodyEdit edit(body);  // every byte that we don't name stays as it is
    edit.set("max_tokens", prefill_tokens_);
    edit.remove("max_completion_tokens");
    edit.set("stream", "false");
    edit.remove("stream_options");
    const auto pieces = edit.pieces();

    sdk::Leg prefill;
    prefill.id = kPrefill;
    prefill.reply = HANDOFF_REPLY_COLLECT;   // LEG_DONE when the whole reply is there
    prefill.flags = HANDOFF_LEG_MAY_RESEND;  // filling a cache twice does no harm
    prefill.body = pieces;
    turn.start(prefill);
    return std::make_unique<PrefillThenDecode>();
  }

 private:
  std::string prefill_tokens_;
};

constexpr std::array kRoutes{
    handoff_route{sdk::bytes("POST"), sdk::bytes("/v1/chat/completions")},
    handoff_route{sdk::bytes("POST"), sdk::bytes("/v1/completions")},
};
constexpr std::array kConfigKeys{
    handoff_config_key{sdk::bytes("DYN_SIDECAR_EXAMPLE_PREFILL_TOKENS"), sdk::bytes(""), sdk::bytes("1"),
                       sdk::bytes("Tokens that prefill generates."), HANDOFF_CONFIG_UINT, 0},
};
constexpr sdk::Declaration kDeclaration{
    .name = "example", .protocol = "example-1", .routes = kRoutes, .config_keys = kConfigKeys};

}  // namespace

HANDOFF_DEFINE_BACKEND(ExampleBackend, kDeclaration)
