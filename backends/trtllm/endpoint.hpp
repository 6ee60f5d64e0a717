#pragma once

#include <cstdint>
#include <string_view>

namespace handoff::trtllm {

/// The API paths that carry `disaggregated_params`.
enum class Api : std::uint8_t { chat, completions };

inline constexpr std::string_view kChatPath = "/v1/chat/completions";
inline constexpr std::string_view kCompletionsPath = "/v1/completions";

/// `path` is one of the two: others are no routes of this plugin.
Api api_of(std::string_view path);

}  // namespace handoff::trtllm
