#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "epp/tokenization/tokenizer.hpp"
#include "epp/tokenization/tokenizer_protocol.hpp"

namespace handoff::epp {

struct HttpTokenizerOptions {
  TokenizerKind kind = TokenizerKind::kVllmRender;
  std::string url;                          // absolute http URL, a path prefix is kept
  std::string base_model;                   // asked with where a service refuses an alias or a LoRA name
  std::chrono::milliseconds timeout{5000};  // of a call, waiting and retries included
  std::size_t max_response_bytes = std::size_t{16} << 20;
  std::size_t cache_bytes = std::size_t{64} << 20;  // 0: none
  std::size_t max_connections = 64;
};

// Since the start; a call is counted once, when it is answered.
struct TokenizerCounters {
  std::uint64_t cached = 0;   // known before
  std::uint64_t at_hand = 0;  // the request brought its token ids
  std::uint64_t joined = 0;   // answered by a call for an equal request
  std::uint64_t asked = 0;    // calls to the service
  std::uint64_t failed = 0;   // of these
};

class HttpTokenizer : public Tokenizer {
 public:
  virtual TokenizerCounters counters() const = 0;
};

// A tokenizer that asks a vLLM or SGLang service. Owns one thread. Null, and `error` says why, when the URL
// can't be used; whether the service answers is not asked.
std::unique_ptr<HttpTokenizer> make_http_tokenizer(HttpTokenizerOptions options, std::string& error);

}  // namespace handoff::epp
