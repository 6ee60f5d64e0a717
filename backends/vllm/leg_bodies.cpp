#include "backends/vllm/leg_bodies.hpp"

namespace handoff::vllm {
namespace {

constexpr std::string_view kParamsField = "kv_transfer_params";
handoff_piece fresh(std::string_view text) {
  return {text.data(), 0, text.size()};
}

enum class Run { one_token, one_that_is_no_end, as_asked };

/// One token. `min_tokens` above the limit is refused by the engine; one of 1 keeps end tokens from being
/// chosen, and stop strings from being looked for.
void limit_to_one_token(sdk::BodyEdit& edit, const sdk::Object& object, const Endpoint& endpoint, Run run) {
  for (const TokenLimit& limit : endpoint.limits) {
    if (limit.name.empty()) continue;
    const auto* sent = object.find(limit.name);
    if (limit.add_if_absent || (sent != nullptr && sent->kind != HANDOFF_JSON_NULL))
      edit.set(limit.name, "1");
  }
  if (run == Run::one_that_is_no_end && endpoint.has_min_tokens) {
    edit.set("min_tokens", "1");
  } else {
    edit.remove("min_tokens");
  }
  edit.remove("min_completion_tokens");
}

/// `sampling_params.extra_args` is where engines read the parameters that ignore the top-level field.
void set_extra_args(const sdk::Host& host, sdk::BodyEdit& sampling_edit, const sdk::Object& sampling,
                    std::size_t base, std::string_view params) {
  const auto* member = sampling.find("extra_args");
  if (member == nullptr || member->kind == HANDOFF_JSON_NULL) {
    sampling_edit.set("extra_args", std::vector<handoff_piece>{fresh(R"({"kv_transfer_params":)"),
                                                               fresh(params), fresh("}")});
    return;
  }
  if (member->kind != HANDOFF_JSON_OBJECT) return;  // the engine's to refuse
  const sdk::Object extra = host.json(sampling.raw(*member));
  if (!extra.is_object()) return;
  sdk::BodyEdit edit(extra, base + member->value_begin);
  edit.set(kParamsField, params);
  sampling_edit.set("extra_args", edit);
}

void edit_sampling_params(const sdk::Host& host, sdk::BodyEdit& body_edit, const sdk::Object& body,
                          const Endpoint& endpoint, std::string_view params, Run run) {
  const auto* member = body.find("sampling_params");
  if (member == nullptr || member->kind != HANDOFF_JSON_OBJECT) return;
  const sdk::Object sampling = host.json(body.raw(*member));
  if (!sampling.is_object()) return;
  sdk::BodyEdit edit(sampling, member->value_begin);
  if (run != Run::as_asked) limit_to_one_token(edit, sampling, endpoint, run);
  if (!params.empty()) set_extra_args(host, edit, sampling, member->value_begin, params);
  body_edit.set("sampling_params", edit);
}

sdk::BodyEdit edit_body(const sdk::Host& host, const sdk::Object& body, const Endpoint& endpoint,
                        std::string_view params, Run run) {
  sdk::BodyEdit edit(body);
  if (run != Run::as_asked) {
    edit.set("stream", "false");
    edit.remove("stream_options");  // refused without `stream`
    if (!endpoint.has_sampling_params) limit_to_one_token(edit, body, endpoint, run);
    if (endpoint.has_store) edit.set("store", "false");  // nobody can ask for this answer later
  }
  if (endpoint.has_sampling_params) edit_sampling_params(host, edit, body, endpoint, params, run);
  if (!params.empty()) edit.set(kParamsField, params);
  // A store's own threshold would end a leg that has to run.
  if (edit.has("cache_hit_threshold")) edit.set("cache_hit_threshold", "0");
  return edit;
}

}  // namespace

const std::string_view kAskForHandoff =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
    R"("remote_block_ids":null,"remote_host":null,"remote_port":null})";

std::vector<handoff_piece> prefill_body(const sdk::Host& host, const sdk::Object& body,
                                        const Endpoint& endpoint, std::string_view params,
                                        const PrefillWish& wish) {
  const Run run = wish.no_end ? Run::one_that_is_no_end : Run::one_token;
  auto edit = edit_body(host, body, endpoint, params, run);
  if (wish.tokens) edit.set("return_token_ids", "true");
  return edit.pieces();
}

std::vector<handoff_piece> decode_body(const sdk::Host& host, const sdk::Object& body,
                                       const Endpoint& endpoint, std::string_view params,
                                       std::string_view prompt) {
  auto edit = edit_body(host, body, endpoint, params, Run::as_asked);
  if (!prompt.empty()) edit.set("prompt", prompt);
  return edit.pieces();
}

std::vector<handoff_piece> release_body(const sdk::Host& host, const sdk::Object& body,
                                        const Endpoint& endpoint, std::string_view params,
                                        std::string_view cache_salt) {
  auto edit = edit_body(host, body, endpoint, params, Run::one_token);
  if (endpoint.has_cache_salt) edit.set("cache_salt", cache_salt);
  return edit.pieces();
}

}  // namespace handoff::vllm
