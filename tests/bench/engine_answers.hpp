// What engines of each P/D protocol answer, as far as the plugins look: backends/*/PROTOCOL.md.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bench {

// Whole HTTP responses, made once.
class EngineAnswers {
 public:
  explicit EngineAnswers(bool is_prefill);

  std::string_view completion() const { return completion_; }
  std::string_view empty() const { return empty_; }
  std::string_view not_found() const { return not_found_; }
  // Of a prefill leg whose handoff goes another way than through the reply: the token limit ended it.
  std::string_view primed() const { return primed_; }
  // vLLM NIXL's prefill reply.
  std::string_view nixl_handoff() const { return nixl_handoff_; }
  std::string_view push_handoff() const { return push_handoff_; }
  // Of SGLang and TensorRT-LLM in one: each plugin reads its own members.
  std::string_view server_info() const { return server_info_; }
  // The ranks that Mooncake's bootstrap server knows.
  std::string_view mooncake_ranks() const { return mooncake_ranks_; }

  // TensorRT-LLM's context reply: the id that it was asked with, and a token for each 4 bytes of the request.
  void append_context_reply(std::string& out, std::string_view disagg_id, std::size_t request_bytes) const;

 private:
  std::string completion_, empty_, not_found_, primed_, nixl_handoff_, push_handoff_, server_info_,
      mooncake_ranks_;
  std::string token_ids_;
};

// The response with its length; `body` is JSON.
std::string json_response(std::string_view status, std::string_view body);

}  // namespace bench
