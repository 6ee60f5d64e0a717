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

/// A handoff as the pinned release sends it, with ids that a double can't hold.
inline const std::string kContextParams =
    R"({"request_type": "context_only", "first_gen_tokens": [42], "first_gen_log_probs": null, )"
    R"("ctx_request_id": 9007199254740993, "encoded_opaque_state": "QUJD+/8=", "draft_tokens": null, )"
    R"("disagg_request_id": 4611686018427387905, "ctx_dp_rank": 1, "ctx_info_endpoint": null, )"
    R"("schedule_style": null, "later": {"<&>": [1.50e3, -0.0]}})";
/// What generation gets of it: one member is another.
inline const std::string kGenerationParams = [] {
  std::string text = kContextParams;
  return text.replace(text.find("context_only"), 12, "generation_only");
}();

/// A chat reply of a context engine.
inline std::string context_reply(std::string_view params = kContextParams, std::string_view finish = "length",
                                 std::string_view ids = R"("prompt_token_ids": [1, 2, 30])") {
  return R"({"id": "chatcmpl-1", "object": "chat.completion", "created": 17, "model": "m", )" +
         std::string(ids) +
         R"(, "choices": [ {"index": 0, "message": {"role": "assistant", "content": " One"}, "finish_reason": ")" +
         std::string(finish) + R"(", "stop_reason": null, "disaggregated_params": )" + std::string(params) +
         R"(} ], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}})";
}

/// A TensorRT-LLM plugin with the given settings, and shorthands for the usual course of a request.
class TrtllmCase : public PluginCase {
 protected:
  explicit TrtllmCase(const std::map<std::string, std::string>& settings = {})
      : PluginCase(HANDOFF_TRTLLM_PLUGIN, settings) {}

  /// The context leg of a request that must be disaggregated.
  Leg context(std::string_view path, std::string body, std::vector<Header> headers = {}) {
    return first_leg(path, std::move(body), std::move(headers));
  }
  /// What follows a context reply with status 200.
  Action after_reply(std::string_view path, std::string body, std::string reply) {
    return after_first_reply(path, std::move(body), std::move(reply));
  }
  /// The generation leg after such a reply.
  Leg generation(std::string_view path, std::string body, std::string reply) {
    return second_leg(path, std::move(body), std::move(reply));
  }
};

}  // namespace handoff::plugin_test
