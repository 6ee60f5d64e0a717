// The mock's chat template: one text per request, the same on P and D, in which every word of the prompt
// appears.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace handoff::mock {

// `error` names what is wrong with `field`; empty when `text` is good.
struct PromptText {
  std::string text;
  std::string field;
  std::string error;
};

PromptText checked_chat_prompt_text(const nlohmann::json& body);
PromptText responses_prompt_text(const nlohmann::json& body);
PromptText messages_prompt_text(const nlohmann::json& body);

}  // namespace handoff::mock
