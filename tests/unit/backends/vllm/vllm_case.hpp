#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/unit/backends/plugin_case.hpp"

namespace handoff::plugin_test {

inline constexpr std::string_view kChat = "/v1/chat/completions";
inline constexpr std::string_view kCompletions = "/v1/completions";
inline constexpr std::string_view kResponses = "/v1/responses";
inline constexpr std::string_view kMessages = "/v1/messages";
inline constexpr std::string_view kGenerate = "/inference/v1/generate";

/// What prefill is asked with.
inline const std::string kAsk =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
    R"("remote_block_ids":null,"remote_host":null,"remote_port":null})";
/// A handoff as the pinned release sends it.
inline const std::string kHandoff =
    R"({"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[12, 13], []], )"
    R"("remote_engine_id": "e-1", "remote_request_id": "cmpl-x-0-1a2b3c4d", "remote_host": "10.9.9.9", )"
    R"("remote_port": 5600, "tp_size": 1, "remote_num_tokens": 37, "remote_blocks_expiry_time": null, )"
    R"("transfer_mode": "pull"})";

inline std::string reply_with(std::string_view params) {
  return R"({"id":"a","choices":[{"text":"x"}],"kv_transfer_params":)" + std::string(params) + "}";
}

/// A vLLM plugin with the given settings, and shorthands for the usual course of a request.
class VllmCase : public PluginCase {
 protected:
  explicit VllmCase(const std::map<std::string, std::string>& settings = {})
      : PluginCase(HANDOFF_VLLM_PLUGIN, settings) {}

  /// The prefill leg of a request that must be disaggregated.
  Leg prefill(std::string_view path, std::string body, std::vector<Header> headers = {}) {
    return first_leg(path, std::move(body), std::move(headers));
  }
  /// The decode leg of the same, after that prefill reply.
  Leg decode(std::string_view path, std::string body, std::string reply, std::vector<Header> headers = {}) {
    return second_leg(path, std::move(body), std::move(reply), std::move(headers));
  }
  /// What follows a prefill reply with status 200.
  Action after_reply(std::string reply) {
    return after_first_reply(kChat, R"({"messages":[]})", std::move(reply));
  }
};

}  // namespace handoff::plugin_test
