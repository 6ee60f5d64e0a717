#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sglang {

inline constexpr std::string_view kGeneratePath = "/generate";
inline constexpr std::string_view kChatPath = "/v1/chat/completions";
inline constexpr std::string_view kCompletionsPath = "/v1/completions";
// Their request models have no bootstrap fields: what is sent to them never gets a room.
inline constexpr std::string_view kResponsesPath = "/v1/responses";
inline constexpr std::string_view kMessagesPath = "/v1/messages";

/// How many items one request may hold. Each has a room, an id and an abort of its own.
inline constexpr std::size_t kMaxItems = 1024;

/// What a request asks for, as far as prefill and decode must agree on it.
struct RequestShape {
  bool is_generate = false;  ///< the native API: replies are objects with `meta_info`
  std::optional<std::size_t>
      items;                     ///< a batch of so many; nothing: a single request, whose fields are no lists
  bool merges_logprobs = false;  ///< prefill's input log-probabilities belong into the answer
  std::string_view refused_field;  ///< what can't be carried, if anything; constant
  std::string_view refusal;        ///< why, for the client; constant
};

/// A decode engine can't prefill by itself, so what rooms can't carry is refused here: sent on, it would hang
/// for the engine's five minutes. What the engine refuses anyway is left to it.
RequestShape read_shape(std::string_view path, const sdk::Object& body);

}  // namespace handoff::sglang
