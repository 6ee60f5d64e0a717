#include "engine_answers.hpp"

#include <algorithm>

namespace bench {
namespace {

constexpr std::string_view kCompletion =
    R"({"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,)"
    R"("message":{"role":"assistant","content":"answer"},"finish_reason":"stop"}],)"
    R"("usage":{"prompt_tokens":8,"total_tokens":9}})";
constexpr std::string_view kPrimed =
    R"({"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},)"
    R"("finish_reason":"length"}]})";
constexpr std::string_view kBeforeTransferMode =
    R"({"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},)"
    R"("finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,)"
    R"("remote_block_ids":[[1,2,3]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1",)"
    R"("remote_port":5600,"tp_size":1,"remote_num_tokens":37,"remote_blocks_expiry_time":null,)"
    R"("transfer_mode":")";
constexpr std::string_view kMooncakeRanks =
    R"({"0":{"engine_id":"e_dp0","worker_addr":{"0":{"0":"tcp://127.0.0.1:5601"}}}})";
constexpr std::string_view kServerInfoAfterMode =
    R"(","disaggregation_bootstrap_port":8998,"dp_size":1,"version":"0.5.19",)"
    R"("disaggregated_params":{"ctx_dp_rank":0,"ctx_info_endpoint":["tcp://127.0.0.1:5602"]}})";
constexpr std::string_view kContextBeforeId =
    R"({"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},)"
    R"("finish_reason":"length","disaggregated_params":{"request_type":"context_only","first_gen_tokens":[7],)"
    R"("ctx_request_id":)";
constexpr std::string_view kContextAfterId =
    R"(,"encoded_opaque_state":null,"draft_tokens":null,"ctx_dp_rank":0,)"
    R"("ctx_info_endpoint":["tcp://127.0.0.1:5602"]}}],"usage":{"prompt_tokens":8,"total_tokens":9},)"
    R"("prompt_token_ids":[)";
constexpr std::string_view kTokenId = "12345,";
constexpr std::size_t kBytesPerToken = 4;
constexpr std::size_t kMostTokens = std::size_t{256} * 1024;

}  // namespace

std::string json_response(std::string_view status, std::string_view body) {
  std::string out = "HTTP/1.1 ";
  out.append(status).append("\r\nContent-Type: application/json\r\nContent-Length: ");
  out.append(std::to_string(body.size())).append("\r\n\r\n").append(body);
  return out;
}

EngineAnswers::EngineAnswers(bool is_prefill)
    : completion_(json_response("200 OK", kCompletion)),
      empty_(json_response("200 OK", "{}")),
      not_found_(json_response("404 Not Found", "{}")),
      primed_(json_response("200 OK", kPrimed)),
      nixl_handoff_(json_response("200 OK", std::string(kBeforeTransferMode) + R"(pull"}})")),
      push_handoff_(json_response("200 OK", std::string(kBeforeTransferMode) + R"(push"}})")),
      server_info_(json_response("200 OK", R"({"disaggregation_mode":")" +
                                               std::string(is_prefill ? "prefill" : "decode") +
                                               std::string(kServerInfoAfterMode))),
      mooncake_ranks_(json_response("200 OK", kMooncakeRanks)) {
  token_ids_.reserve(kMostTokens * kTokenId.size());
  for (std::size_t i = 0; i < kMostTokens; ++i) token_ids_ += kTokenId;
}

void EngineAnswers::append_context_reply(std::string& out, std::string_view disagg_id,
                                         std::size_t request_bytes) const {
  const std::size_t tokens = std::clamp<std::size_t>(request_bytes / kBytesPerToken, 1, kMostTokens);
  std::string body(kContextBeforeId);
  body.append(disagg_id).append(R"(,"disagg_request_id":)").append(disagg_id).append(kContextAfterId);
  body.append(token_ids_, 0, tokens * kTokenId.size() - 1).append("]}");
  out += json_response("200 OK", body);
}

}  // namespace bench
