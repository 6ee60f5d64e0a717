#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "epp/tokenization/tokenizer.hpp"

namespace handoff::epp {

// What is said to a tokenizer service and what its answers mean: bytes in, bytes out, no network.

enum class TokenizerKind : std::uint8_t {
  kVllmRender,      // POST /v1/chat/completions/render and /v1/completions/render, the body as it is
  kSglangRenderer,  // the same path for chat; completions are asked at /v1/tokenize
  kSglangTokenize,  // POST /v1/tokenize with what of the body matters
};

// Equal keys mean equal tokens; nothing can be read from it.
using PromptKey = std::array<std::uint64_t, 2>;

// The call that answers a request.
struct TokenizerAsk {
  std::string path;                         // below the service's base URL
  std::shared_ptr<const std::string> body;  // the client's, or a part of it
  PromptKey key{};
};

// The request brings its token ids.
struct TokensAtHand {
  std::vector<TokenizedPrompt> prompts;
};

// What to do for a request. A failure: nothing that a tokenizer could be asked.
using TokenizerStep = std::variant<TokenizerAsk, TokensAtHand, TokenizeFailure>;

// `seed` makes keys of this process unlike those of others. Any thread.
TokenizerStep plan_tokenization(TokenizerKind kind, const TokenizeRequest& request, std::uint64_t seed);

// The same body with another model name; empty when it has none.
std::string with_model(std::string_view body, std::string_view model);

// The prompts of a 200, or what is wrong with it. Gives `answer` room behind its end for the parser.
std::variant<std::vector<TokenizedPrompt>, std::string> parse_tokens(std::string& answer);

}  // namespace handoff::epp
