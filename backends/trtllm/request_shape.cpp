#include "backends/trtllm/request_shape.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "backends/json_text/json_text.hpp"

namespace handoff::trtllm {
namespace {

using json_text::PromptCount;

/// Values that leave a field without effect, so that a handoff can carry the request.
enum class Harmless : std::uint8_t { null, null_or_false, null_or_one };

struct Rule {
  std::string_view field;
  Harmless harmless;
  std::string_view reason;
};

// A handoff is one choice of one prompt, and generation computes nothing of the prompt.
constexpr std::array kRules{
    Rule{"n", Harmless::null_or_one, "n"},
    Rule{"best_of", Harmless::null_or_one, "best_of"},
    Rule{"use_beam_search", Harmless::null_or_false, "use_beam_search"},
    Rule{"prompt_logprobs", Harmless::null, "prompt_logprobs"},
    Rule{"return_context_logits", Harmless::null_or_false, "context_logits"},
    Rule{"echo", Harmless::null_or_false, "echo"},
};

bool is_harmless(std::string_view value, std::uint32_t kind, Harmless harmless) {
  if (kind == HANDOFF_JSON_NULL) return true;
  switch (harmless) {
    case Harmless::null:
      return false;
    case Harmless::null_or_false:
      return kind == HANDOFF_JSON_FALSE;
    case Harmless::null_or_one:
      return json_text::reads_as_one(value);
  }
  return false;
}

}  // namespace

std::string_view decode_only_reason(const sdk::Object& body, Api api) {
  PromptCount prompts = PromptCount::none;
  for (const auto& member : body.members()) {  // of a repeated name, any may be the one that counts
    const auto name = sdk::view(member.name);
    const auto value = body.raw(member);
    for (const Rule& rule : kRules) {
      if (name == rule.field && !is_harmless(value, member.kind, rule.harmless)) return rule.reason;
    }
    // The sidecar refuses these unless it trusts its clients; then the client runs its own protocol.
    if (name == "disaggregated_params" && member.kind != HANDOFF_JSON_NULL &&
        !json_text::is_empty_object(value)) {
      return "client_handoff";
    }
    if (api == Api::completions && name == "prompt")
      prompts = std::max(prompts, json_text::count_prompts(value));
  }
  return prompts == PromptCount::several ? "several_prompts" : std::string_view{};
}

bool wants_stream(const sdk::Object& body) {
  const auto* member = body.find("stream");
  return member != nullptr && json_text::reads_as_true(body.raw(*member));
}

}  // namespace handoff::trtllm
