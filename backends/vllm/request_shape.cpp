#include "backends/vllm/request_shape.hpp"

#include <algorithm>
#include <array>

#include "backends/field_rules/field_rules.hpp"
#include "backends/json_text/json_text.hpp"

namespace handoff::vllm {
namespace {

using field_rules::brings;
using field_rules::first_reason;
using field_rules::Harmless;
using field_rules::Rule;
using json_text::PromptCount;

// A handoff is one sequence of one prompt, and decode computes nothing of the prompt that it pulls.
constexpr std::array kSamplingRules{
    Rule{"n", Harmless::null_or_one, "n"},
    Rule{"best_of", Harmless::null_or_one, "best_of"},
    Rule{"use_beam_search", Harmless::null_or_false, "use_beam_search"},
    Rule{"prompt_logprobs", Harmless::null, "prompt_logprobs"},
    Rule{"prompt_logprob_token_ids", Harmless::null, "prompt_logprobs"},
};
// A negative `truncate_prompt_tokens` cuts the prompt to what the token limit leaves of the context.
// Prefill's limit is one token, so it would cut elsewhere than decode, and hand over the KV of another
// prompt.
constexpr std::array kPromptRules{
    Rule{"echo", Harmless::null_or_false, "echo"},
    Rule{"truncate_prompt_tokens", Harmless::null_or_counted, "truncation"},
};
// The prefill engine has neither the decode engine's stored responses nor anyone who asks for a later one.
constexpr std::array kResponsesRules{
    Rule{"truncation", Harmless::null_or_disabled, "truncation"},
    Rule{"background", Harmless::null_or_false, "background"},
    Rule{"previous_response_id", Harmless::null, "previous_response_id"},
};

/// `prompt` and `prompt_embeds` both add prompts.
std::string_view prompts_reason(const sdk::Object& body) {
  bool found_one = false;
  for (const std::string_view field : {"prompt", "prompt_embeds"}) {
    PromptCount most = PromptCount::none;
    for (const auto& member : body.members()) {
      if (sdk::view(member.name) == field) most = std::max(most, json_text::count_prompts(body.raw(member)));
    }
    if (most == PromptCount::several || (most == PromptCount::one && found_one)) return "several_prompts";
    found_one = found_one || most == PromptCount::one;
  }
  return {};
}

std::string_view generate_reason(const sdk::Host& host, const sdk::Object& body) {
  const auto* member = body.find("sampling_params");
  if (member == nullptr || member->kind != HANDOFF_JSON_OBJECT) return {};  // the engine refuses it itself
  const sdk::Object sampling = host.json(body.raw(*member));
  if (const auto reason = first_reason(sampling, kSamplingRules); !reason.empty()) return reason;
  const auto* extra = sampling.find("extra_args");
  if (extra == nullptr || extra->kind != HANDOFF_JSON_OBJECT) return {};
  return brings(host.json(sampling.raw(*extra)), "kv_transfer_params") ? "client_handoff"
                                                                       : std::string_view{};
}

}  // namespace

std::string_view decode_only_reason(const sdk::Host& host, const sdk::Object& body,
                                    const Endpoint& endpoint) {
  if (brings(body, "kv_transfer_params")) return "client_handoff";
  if (const auto reason = field_rules::stream_reason(host, body, field_rules::OtherOptions::allowed);
      !reason.empty())
    return reason;
  if (endpoint.has_sampling_params) return generate_reason(host, body);
  if (endpoint.path == kResponsesPath) return first_reason(body, kResponsesRules);
  if (endpoint.path == kMessagesPath) return {};  // none of the fields exists there
  if (const auto reason = first_reason(body, kSamplingRules); !reason.empty()) return reason;
  if (const auto reason = first_reason(body, kPromptRules); !reason.empty()) return reason;
  return endpoint.path == kCompletionsPath ? prompts_reason(body) : std::string_view{};
}

}  // namespace handoff::vllm
