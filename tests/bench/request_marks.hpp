// What the fake engine wants to know about a request body, found without keeping the body.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bench {

// Looks for the P/D members that a sidecar adds and for a streaming request. Blanks around the colon are
// allowed.
class RequestMarks {
 public:
  void feed(std::string_view body);
  void reset();

  std::size_t body_bytes() const { return body_bytes_; }
  bool asks_for_stream() const { return asks_for_stream_; }        // "stream":true
  bool asks_for_one_token() const { return asks_for_one_token_; }  // "max_tokens":1

  // vLLM, NIXL and Mooncake
  bool asks_for_handoff() const { return asks_for_handoff_; }  // "do_remote_decode":true
  bool carries_handoff() const { return carries_handoff_; }    // "do_remote_prefill":true
  // TensorRT-LLM
  bool asks_for_context() const { return asks_for_context_; }  // "request_type":"context_only"
  bool carries_context() const { return carries_context_; }    // "request_type":"generation_only"
  // What both legs of a request have in common, as it is written: SGLang's bootstrap_room, TensorRT-LLM's
  // disagg_request_id, Mooncake's transfer_id, or offloading's kv_request_id. Empty where the request has
  // none.
  std::string_view pairing_id() const { return pairing_id_; }

 private:
  void scan(std::string_view text);

  std::size_t body_bytes_ = 0;
  bool asks_for_stream_ = false;
  bool asks_for_one_token_ = false;
  bool asks_for_handoff_ = false;
  bool carries_handoff_ = false;
  bool asks_for_context_ = false;
  bool carries_context_ = false;
  std::string pairing_id_;
  std::string tail_;  // the end of what was fed, for a member cut in two
};

}  // namespace bench
