#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tests/unit/backends/vllm/vllm_case.hpp"

// What the tests of connectors other than NIXL's pull share.
namespace handoff::plugin_test {

using Json = nlohmann::ordered_json;
using Kind = Action::Kind;

inline const std::string kShortAsk = R"({"messages":[],"max_tokens":9})";

inline std::map<std::string, std::string> connector(const std::string& name) {
  return {{"DYN_SIDECAR_VLLM_CONNECTOR", name}};
}
inline Event head(std::uint32_t leg, std::uint32_t status) {
  return {.kind = HANDOFF_EVENT_LEG_HEAD, .leg = leg, .status = status, .flags = 5};
}
inline Event piece(std::uint32_t leg, std::string body) {
  return {.kind = HANDOFF_EVENT_LEG_BODY, .leg = leg, .status = 200, .body = std::move(body), .flags = 5};
}
inline Event lost(std::uint32_t leg) {
  return leg_failed(leg, HANDOFF_CAUSE_RESET, HANDOFF_REUSED | HANDOFF_REQUEST_SENT);
}

/// Both legs of an exchange that starts them at once.
struct Pair {
  std::unique_ptr<Exchange> exchange;
  Leg prefill;
  Leg decode;
};

/// A handoff of an engine that pushes.
inline const std::string kPushed =
    R"({"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e","remote_request_id":"r",)"
    R"("remote_host":"h","remote_port":5600,"tp_size":1,"pp_size":1,"transfer_mode":"push"})";

}  // namespace handoff::plugin_test
