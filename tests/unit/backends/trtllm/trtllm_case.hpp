#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/backends/plugin_harness.hpp"

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
class TrtllmCase : public ::testing::Test {
 protected:
  explicit TrtllmCase(const std::map<std::string, std::string>& settings = {});
  ~TrtllmCase() override;

  std::unique_ptr<Exchange> begin(std::string_view path, std::string body, std::vector<Header> headers = {});
  /// The one action that a call caused.
  static Action only(const std::vector<Action>& actions);
  /// The context leg of a request that must be disaggregated.
  Leg context(std::string_view path, std::string body, std::vector<Header> headers = {});
  /// What follows a context reply with status 200.
  Action after_reply(std::string_view path, std::string body, std::string reply);
  /// The generation leg after such a reply.
  Leg generation(std::string_view path, std::string body, std::string reply);
  std::string decode_only_reason(std::string_view path, std::string body);

  Plugin plugin_;
  Host host_;
  Backend backend_;
};

}  // namespace handoff::plugin_test
