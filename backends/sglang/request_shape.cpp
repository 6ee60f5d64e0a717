#include "backends/sglang/request_shape.hpp"

#include "backends/json_text/values.hpp"

namespace handoff::sglang {
namespace {

constexpr std::string_view kSamplesRefusal =
    "Only n = 1 can be split into prefill and decode: SGLang engines give all samples of a prompt its one "
    "bootstrap room.";
constexpr std::string_view kItemsRefusal =
    "A batch that is split into prefill and decode may hold at most 1024 items.";
constexpr std::string_view kPathRefusal =
    "This API can't be split into prefill and decode with SGLang: its requests carry no bootstrap room. Use "
    "/v1/chat/completions, /v1/completions or /generate.";

bool is_one_or_absent(std::optional<std::string_view> n) {
  return !n || *n == "null" || json_text::reads_as_one(*n);
}

std::optional<std::string_view> value_of(const sdk::Object& body, std::string_view name) {
  const auto* member = body.find(name);
  if (member == nullptr || member->kind == HANDOFF_JSON_NULL) return std::nullopt;
  return body.raw(*member);
}

std::size_t count_items(std::string_view list) {
  json_text::Items items(list);
  std::size_t count = 0;
  while (count <= kMaxItems && items.next()) ++count;
  return count;
}

/// The engine's own rule: a list is a batch unless its first item is what a single prompt is made of.
std::optional<std::size_t> batch_size(std::string_view value, bool numbers_are_one_prompt) {
  json_text::Items items(value);
  if (!items.is_list()) return std::nullopt;
  const auto first = items.next();
  if (!first) return std::nullopt;  // empty: the engine's own refusal
  if (numbers_are_one_prompt && first->front() != '"' && first->front() != '[') return std::nullopt;
  return count_items(value);
}

/// `input_embeds`: a list of vectors is one prompt, a list of those a batch.
std::optional<std::size_t> embeds_size(std::string_view value) {
  json_text::Items prompts(value);
  const auto first = prompts.next();
  if (!first) return std::nullopt;
  json_text::Items vectors(*first);
  const auto inner = vectors.next();
  if (!inner || inner->front() != '[') return std::nullopt;
  return count_items(value);
}

bool samples_are_one(std::string_view sampling_params) {
  if (sampling_params.front() == '{') return is_one_or_absent(json_text::find_member(sampling_params, "n"));
  json_text::Items each(sampling_params);
  while (const auto one = each.next()) {
    if (!is_one_or_absent(json_text::find_member(*one, "n"))) return false;
  }
  return true;
}

RequestShape generate_shape(const sdk::Object& body) {
  RequestShape shape;
  shape.is_generate = true;
  if (const auto text = value_of(body, "text")) {
    shape.items = batch_size(*text, /*numbers_are_one_prompt=*/false);
  } else if (const auto ids = value_of(body, "input_ids")) {
    shape.items = batch_size(*ids, /*numbers_are_one_prompt=*/true);
  } else if (const auto embeds = value_of(body, "input_embeds")) {
    shape.items = embeds_size(*embeds);
  }
  const auto logprob = value_of(body, "return_logprob");
  shape.merges_logprobs = logprob && *logprob != "false";
  const auto sampling = value_of(body, "sampling_params");
  if (sampling && !samples_are_one(*sampling)) {
    shape.refused_field = "sampling_params.n";
    shape.refusal = kSamplesRefusal;
  }
  return shape;
}

}  // namespace

RequestShape read_shape(std::string_view path, const sdk::Object& body) {
  RequestShape shape;
  if (path == kGeneratePath) {
    shape = generate_shape(body);
  } else if (path == kChatPath || path == kCompletionsPath) {
    const auto prompt = path == kCompletionsPath ? value_of(body, "prompt") : std::nullopt;
    if (prompt) shape.items = batch_size(*prompt, /*numbers_are_one_prompt=*/true);
    if (!is_one_or_absent(value_of(body, "n"))) {
      shape.refused_field = "n";
      shape.refusal = kSamplesRefusal;
    }
  } else {
    shape.refusal = kPathRefusal;
  }
  if (shape.refusal.empty() && shape.items.value_or(0) > kMaxItems) {
    shape.refused_field = shape.is_generate ? "text" : "prompt";
    shape.refusal = kItemsRefusal;
  }
  return shape;
}

}  // namespace handoff::sglang
