#include "backends/vllm/handoff_params.hpp"

#include "backends/json_text/json_text.hpp"
#include "backends/vllm/block_ids.hpp"

namespace handoff::vllm {
namespace {

using Kind = HandoffParams::Kind;

HandoffParams missing(std::string_view reason, std::string_view cause) {
  return {.kind = Kind::missing, .params = {}, .reason = reason, .cause = cause};
}
HandoffParams invalid(std::string_view reason) {
  return {.kind = Kind::invalid, .params = {}, .reason = reason, .cause = {}};
}

bool has_kind(const handoff_member* member, std::uint32_t kind) {
  return member != nullptr && member->kind == kind;
}
bool has_text(const sdk::Object& object, std::string_view name) {
  const auto* member = object.find(name);
  return has_kind(member, HANDOFF_JSON_STRING) && object.raw(*member) != "\"\"";
}

/// A whole number of any size, at least `least` (0 or 1), or not there.
bool is_count_or_absent(const sdk::Object& object, std::string_view name, int least) {
  const auto* member = object.find(name);
  if (member == nullptr || member->kind == HANDOFF_JSON_NULL) return true;
  const auto value = object.raw(*member);
  return member->kind == HANDOFF_JSON_NUMBER &&
         value.find_first_not_of("0123456789") == std::string_view::npos && (least == 0 || value != "0");
}

bool has_text_value(const sdk::Object& object, std::string_view name, std::string_view wanted) {
  const auto* member = object.find(name);
  if (!has_kind(member, HANDOFF_JSON_STRING)) return false;
  const auto raw = object.raw(*member);
  return raw.substr(1, raw.size() - 2) == wanted;
}

bool is_token_list(std::string_view value) {
  json_text::Cursor cursor(value);
  return cursor.take_plain_integers() && cursor.only_space_left() &&
         value.find_first_of("0123456789") != value.npos;
}

/// Empty when decode can use the handoff, else what is wrong with it.
std::string_view find_defect(const sdk::Object& params, BlockIds block_ids) {
  if (block_ids == BlockIds::invalid) return "remote_block_ids is missing or not a list of block ids";
  if (!has_kind(params.find("do_remote_decode"), HANDOFF_JSON_FALSE)) return "do_remote_decode is not false";
  if (!has_text(params, "remote_engine_id")) return "remote_engine_id is missing or not a non-empty string";
  const auto* request_id = params.find("remote_request_id");
  const bool may_lack_id = block_ids == BlockIds::flat;  // releases of that time matched by X-Request-Id
  if (!has_text(params, "remote_request_id") &&
      !(may_lack_id && (request_id == nullptr || request_id->kind == HANDOFF_JSON_NULL))) {
    return "remote_request_id is missing or not a non-empty string";
  }
  if (!has_text(params, "remote_host")) return "remote_host is missing or not a non-empty string";
  const auto* port = params.find("remote_port");
  if (!has_kind(port, HANDOFF_JSON_NUMBER) || json_text::plain_integer(params.raw(*port), 65535) < 1) {
    return "remote_port is missing or not a port number";
  }
  // Not required, but an engine that finds another type there fails inside, far from this request.
  if (!is_count_or_absent(params, "tp_size", 1)) return "tp_size is not a positive integer";
  if (!is_count_or_absent(params, "remote_num_tokens", 0))
    return "remote_num_tokens is not a non-negative integer";
  return {};
}

}  // namespace

HandoffParams read_prefill_reply(const sdk::Host& host, std::string_view reply, Connector connector) {
  const sdk::Object answer = host.json(reply);
  if (!answer.is_object()) return invalid("the reply is not a JSON object");

  const auto* member = answer.find("kv_transfer_params");
  if (member == nullptr || member->kind == HANDOFF_JSON_NULL ||
      json_text::is_empty_object(answer.raw(*member))) {
    return missing("missing_handoff",
                   "The prefill engine answers without kv_transfer_params. It runs without a KV connector "
                   "(--kv-transfer-config), or its release has none for this API path, or for a first token "
                   "that ends the answer.");
  }
  if (member->kind != HANDOFF_JSON_OBJECT) return invalid("kv_transfer_params is not an object");
  const std::string_view text = answer.raw(*member);
  const sdk::Object params = host.json(text);
  if (!params.is_object()) return invalid("kv_transfer_params is not an object");

  if (!has_kind(params.find("do_remote_prefill"), HANDOFF_JSON_TRUE)) {
    return missing("not_a_handoff",
                   "The prefill engine's kv_transfer_params are no handoff (do_remote_prefill is not true). "
                   "Its KV connector is not NIXL, such as a cache connector alone.");
  }
  const auto* ids = params.find("remote_block_ids");
  auto block_ids = ids == nullptr ? BlockIds::invalid : classify_block_ids(params.raw(*ids));
  const bool pushes = connector == Connector::nixl_push;
  // Pushing, decode registers its own blocks: prefill's are nobody's business, and `pp_size` says how many
  // write.
  if (pushes && (ids == nullptr || ids->kind == HANDOFF_JSON_NULL || block_ids == BlockIds::empty))
    block_ids = BlockIds::grouped;
  if (pushes && !has_text_value(params, "transfer_mode", "push")) return invalid("transfer_mode is not push");
  if (!pushes && has_text_value(params, "transfer_mode", "push")) return invalid("transfer_mode is push");
  if (block_ids == BlockIds::empty) {
    return missing(
        "empty_handoff",
        "The prefill engine hands over an empty remote_block_ids, which would end a decode engine. "
        "Check that prefill and decode run the pinned vLLM release.");
  }
  if (const auto defect = find_defect(params, block_ids); !defect.empty()) return invalid(defect);
  return {.kind = Kind::valid, .params = text, .reason = {}, .cause = {}};
}

/// A chat's stand in the reply, a completion's in its choice.
std::string_view read_prompt_tokens(const sdk::Host& host, std::string_view reply) {
  const auto in = [](const sdk::Object& object) {
    const auto* tokens = object.find("prompt_token_ids");
    const bool has_tokens = tokens != nullptr && is_token_list(object.raw(*tokens));
    return has_tokens ? object.raw(*tokens) : std::string_view{};
  };
  const sdk::Object answer = host.json(reply);
  if (const auto tokens = in(answer); !tokens.empty()) return tokens;
  const auto* choices = answer.find("choices");
  if (!has_kind(choices, HANDOFF_JSON_ARRAY)) return {};
  const auto list = answer.raw(*choices);
  return in(host.json(list.substr(1, list.size() - 2)));
}

}  // namespace handoff::vllm
