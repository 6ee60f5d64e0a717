#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace handoff::epp {

enum class TokenizedApi : std::uint8_t { kChatCompletions, kCompletions };

// What a tokenizer needs to know of a request.
struct TokenizeRequest {
  TokenizedApi api = TokenizedApi::kChatCompletions;
  // The client's JSON body, unchanged. Shared, since the call outlives the caller's frame.
  std::shared_ptr<const std::string> body;
  std::string model;  // the body's `model`, escapes resolved; may be an alias or a LoRA name
};

// An image or the like within a prompt: `length` placeholder tokens from `offset` on stand for it.
struct MediaSpan {
  std::uint64_t id = 0;  // media_id() of what the engine calls it
  std::size_t offset = 0;
  std::size_t length = 0;
};

struct TokenizedPrompt {
  std::vector<std::uint32_t> token_ids;
  std::vector<MediaSpan> media;  // by offset
};

// One entry per prompt: completions may carry several. Shared with the cache, so never changed.
using TokenizedPrompts = std::shared_ptr<const std::vector<TokenizedPrompt>>;

enum class TokenizeError : std::uint8_t {
  kRefused,      // 400 or 422: it does not accept the request
  kUnavailable,  // no connection, 429 or 503
  kTimeout,
  kBadAnswer,  // another status, a redirect, not JSON, a member missing, too large
  kCancelled,
};

struct TokenizeFailure {
  TokenizeError error = TokenizeError::kUnavailable;
  std::string detail;  // for the log; nothing of the prompt
};

using TokenizeResult = std::variant<TokenizedPrompts, TokenizeFailure>;
using TokenizeCallback = std::function<void(TokenizeResult)>;

// A running call, for its caller.
class TokenizeCall {
 public:
  virtual ~TokenizeCall() = default;
  // The result is no longer wanted. Whatever was not answered yet is answered with kCancelled, from here or
  // from the tokenizer's thread. Safe to call at any time, from any thread, also after the answer.
  virtual void cancel() = 0;
};

// Turns requests into token ids.
//
// Threads: tokenize() from any thread, and it never blocks. Every call is answered exactly once, before
// tokenize() returns (a cache hit) or later on a thread of the tokenizer's; time limits are its own. The
// callback must not block. Destruction answers what is left with kCancelled.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Null when it was answered already. Dropping the handle lets the call go on.
  virtual std::unique_ptr<TokenizeCall> tokenize(TokenizeRequest request, TokenizeCallback done) = 0;
};

}  // namespace handoff::epp
