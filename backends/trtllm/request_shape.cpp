#include "backends/trtllm/request_shape.hpp"

#include <algorithm>
#include <array>

#include "backends/field_rules/field_rules.hpp"
#include "backends/json_text/json_text.hpp"
#include "backends/trtllm/token_ids.hpp"

namespace handoff::trtllm {
namespace {

using field_rules::Harmless;
using field_rules::Rule;
using json_text::PromptCount;

// A handoff is one choice of one prompt, and generation computes nothing of the prompt.
constexpr std::array kRules{
    Rule{"n", Harmless::null_or_one, "n"},
    Rule{"best_of", Harmless::null_or_one, "best_of"},
    Rule{"use_beam_search", Harmless::null_or_false, "use_beam_search"},
    Rule{"prompt_logprobs", Harmless::null, "prompt_logprobs"},
    Rule{"return_context_logits", Harmless::null_or_false, "context_logits"},
    Rule{"echo", Harmless::null_or_false, "echo"},
};

/// A list of numbers that are no token ids. Context would compute it, or refuse, and its reply repeat it.
bool has_odd_ids(std::string_view prompt) {
  json_text::Cursor cursor(prompt);
  if (!cursor.take('[')) return false;
  if (cursor.next_token() == '[') cursor.step();
  const bool is_text = cursor.next_token() == '"';
  return !is_text && !is_id_list(prompt, Api::completions);
}

}  // namespace

std::string_view decode_only_reason(const sdk::Host& host, const sdk::Object& body, Api api) {
  if (const auto reason = field_rules::first_reason(body, kRules); !reason.empty()) return reason;
  const auto stream = field_rules::stream_reason(host, body, field_rules::OtherOptions::refused);
  if (!stream.empty()) return stream;
  if (field_rules::brings(body, "disaggregated_params")) return "client_handoff";
  if (api != Api::completions) return {};
  PromptCount prompts = PromptCount::none;
  for (const auto& member : body.members()) {  // of a repeated name, any may be the one that counts
    if (sdk::view(member.name) != "prompt") continue;
    const auto prompt = body.raw(member);
    prompts = std::max(prompts, json_text::count_prompts(prompt));
    if (prompts != PromptCount::several && has_odd_ids(prompt)) return "prompt_ids";
  }
  return prompts == PromptCount::several ? "several_prompts" : std::string_view{};
}

bool wants_stream(const sdk::Object& body) {
  const auto* member = body.find("stream");
  return member != nullptr && json_text::reads_as_true(body.raw(*member));
}

}  // namespace handoff::trtllm
