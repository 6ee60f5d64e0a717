#pragma once

#include <array>
#include <string_view>

namespace handoff::vllm {

/// A field that bounds how many tokens are generated.
struct TokenLimit {
  std::string_view name;
  /// False: only a value that the client sent is replaced.
  bool add_if_absent = false;
};

/// What differs between the API paths that vLLM can run as prefill and decode. Constant data.
struct Endpoint {
  std::string_view path;
  std::array<TokenLimit, 2> limits;  ///< top level, or in `sampling_params`; unused ones have no name
  bool has_sampling_params = false;  ///< limits and sampling fields are members of `sampling_params`
  bool has_min_tokens = false;       ///< beside the limits
  bool has_cache_salt = false;
  bool has_store = false;  ///< keeps answers for later requests unless `store` is false
};

inline constexpr std::string_view kChatPath = "/v1/chat/completions";
inline constexpr std::string_view kCompletionsPath = "/v1/completions";
inline constexpr std::string_view kResponsesPath = "/v1/responses";
inline constexpr std::string_view kMessagesPath = "/v1/messages";
inline constexpr std::string_view kGeneratePath = "/inference/v1/generate";

/// Null for a path that is not disaggregated.
const Endpoint* find_endpoint(std::string_view path);

}  // namespace handoff::vllm
