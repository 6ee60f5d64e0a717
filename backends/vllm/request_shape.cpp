#include "backends/vllm/request_shape.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "backends/json_text/json_text.hpp"

namespace handoff::vllm {
namespace {

using json_text::PromptCount;

/// Values that leave a field without effect, so that a handoff can carry the request.
enum class Harmless : std::uint8_t {
  null,             ///< only null
  null_or_false,    ///< a switch that is off
  null_or_one,      ///< a count of one
  null_or_counted,  ///< a plain non-negative number
  null_or_disabled  ///< "disabled"
};

struct Rule {
  std::string_view field;
  Harmless harmless;
  std::string_view reason;
};

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

bool is_harmless(std::string_view value, std::uint32_t kind, Harmless harmless) {
  if (kind == HANDOFF_JSON_NULL) return true;
  switch (harmless) {
    case Harmless::null:
      return false;
    case Harmless::null_or_false:
      return kind == HANDOFF_JSON_FALSE;
    case Harmless::null_or_one:
      return json_text::reads_as_one(value);
    case Harmless::null_or_counted:
      return json_text::plain_integer(value, INT64_MAX) >= 0;
    case Harmless::null_or_disabled:
      return value == "\"disabled\"";
  }
  return false;
}

/// Looks at every member of a repeated name: it must not matter which one an engine takes.
std::string_view first_reason(const sdk::Object& object, std::span<const Rule> rules) {
  for (const auto& member : object.members()) {
    for (const Rule& rule : rules) {
      if (sdk::view(member.name) == rule.field &&
          !is_harmless(object.raw(member), member.kind, rule.harmless)) {
        return rule.reason;
      }
    }
  }
  return {};
}

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

/// Whether any member of that name holds a value. The sidecar refuses those unless it is told to trust its
/// clients; then the client runs its own protocol, and ours would overwrite it.
bool brings(const sdk::Object& object, std::string_view name) {
  for (const auto& member : object.members()) {
    if (sdk::view(member.name) == name && member.kind != HANDOFF_JSON_NULL &&
        !json_text::is_empty_object(object.raw(member))) {
      return true;
    }
  }
  return false;
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
  if (endpoint.has_sampling_params) return generate_reason(host, body);
  if (endpoint.path == kResponsesPath) return first_reason(body, kResponsesRules);
  if (endpoint.path == kMessagesPath) return {};  // none of the fields exists there
  if (const auto reason = first_reason(body, kSamplingRules); !reason.empty()) return reason;
  if (const auto reason = first_reason(body, kPromptRules); !reason.empty()) return reason;
  return endpoint.path == kCompletionsPath ? prompts_reason(body) : std::string_view{};
}

}  // namespace handoff::vllm
