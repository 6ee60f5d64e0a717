#include "backends/trtllm/context_reply.hpp"

#include <algorithm>

#include "backends/json_text/json_text.hpp"
#include "backends/trtllm/token_ids.hpp"

namespace handoff::trtllm {
namespace {

using json_text::Cursor;
using Kind = ContextReply::Kind;

bool has_kind(const handoff_member* member, std::uint32_t kind) {
  return member != nullptr && member->kind == kind;
}
bool is_absent(const handoff_member* member) {
  return member == nullptr || member->kind == HANDOFF_JSON_NULL;
}

/// An id has to arrive as it was sent: a float is one that somebody's parser has already rounded. Engines'
/// own have 64 bits.
bool has_id(const sdk::Object& params, std::string_view name) {
  constexpr std::string_view kLargest = "18446744073709551615";
  const auto* member = params.find(name);
  if (!has_kind(member, HANDOFF_JSON_NUMBER)) return false;
  const auto digits = params.raw(*member);
  Cursor cursor(digits);
  if (!cursor.take_plain_integer() || !cursor.at_end()) return false;
  return digits.size() < kLargest.size() || (digits.size() == kLargest.size() && digits <= kLargest);
}

/// Of such a list.
bool names_no_id(std::string_view list) {
  return std::none_of(list.begin(), list.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// A JSON string of whole groups of four, with the bytes of at least one 32-bit integer.
bool is_base64_of_ids(std::string_view json) {
  auto digits = json.substr(1, json.size() - 2);
  if (digits.empty() || digits.size() % 4 != 0) return false;
  for (int i = 0; i < 2 && digits.back() == '='; ++i) digits.remove_suffix(1);
  const auto is_digit = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
  };
  return digits.size() * 3 / 4 % 4 == 0 && std::all_of(digits.begin(), digits.end(), is_digit);
}

std::string_view find_params_defect(const sdk::Object& params) {
  const auto* type = params.find("request_type");
  if (!has_kind(type, HANDOFF_JSON_STRING) || params.raw(*type) != "\"context_only\"") {
    return "request_type is not context_only";
  }
  if (!has_id(params, "ctx_request_id")) return "ctx_request_id is missing or not an integer";
  if (!has_id(params, "disagg_request_id")) return "disagg_request_id is missing or not an integer";
  return {};
}

/// Finds the prompt's tokens, so that generation does not tokenize the text once more.
std::string_view read_prompt_ids(ContextReply& reply, Api api) {
  const auto* list = reply.answer.find("prompt_token_ids");
  const auto* base64 = reply.answer.find("prompt_token_ids_b64");
  if (is_absent(list) == is_absent(base64)) {
    return is_absent(list) ? "it has no prompt_token_ids"
                           : "it has both prompt_token_ids and prompt_token_ids_b64";
  }
  if (is_absent(list)) {
    if (base64->kind != HANDOFF_JSON_STRING) return "prompt_token_ids_b64 is not a string";
    reply.prompt_ids = reply.answer.raw(*base64);
    reply.ids_are_base64 = true;
    return is_base64_of_ids(reply.prompt_ids)
               ? std::string_view{}
               : "prompt_token_ids_b64 is not base64 of one or more 32-bit integers";
  }
  reply.prompt_ids = reply.answer.raw(*list);
  if (!is_id_list(reply.prompt_ids, api)) return "prompt_token_ids is not a list of integers";
  return names_no_id(reply.prompt_ids) ? "prompt_token_ids is empty" : std::string_view{};
}

}  // namespace

ContextReply read_completion(const sdk::Host& host, std::string_view text) {
  ContextReply reply;
  const auto invalid = [&](std::string_view defect) {
    reply.defect = defect;
    return reply;
  };
  reply.answer = host.json(text);
  if (!reply.answer.is_object()) return invalid("the reply is not a JSON object");
  if (!is_absent(reply.answer.find("error"))) return invalid("it reports an error");
  const auto* choices = reply.answer.find("choices");
  if (!has_kind(choices, HANDOFF_JSON_ARRAY)) return invalid("choices is missing or not a list");
  // What stands within the brackets is an object exactly if there is one choice.
  const auto list = reply.answer.raw(*choices);
  reply.choice = host.json(list.substr(1, list.size() - 2));
  if (!reply.choice.is_object()) return invalid("it has not exactly one choice");

  const auto* reason = reply.choice.find("finish_reason");
  if (!has_kind(reason, HANDOFF_JSON_STRING)) return invalid("finish_reason is missing or not a string");
  const auto finish = reply.choice.raw(*reason);
  const bool goes_on = finish == "\"length\"" || finish == "\"not_finished\"";
  reply.kind = goes_on ? Kind::missing : Kind::finished;
  return reply;
}

ContextReply read_context_reply(const sdk::Host& host, std::string_view text, Api api) {
  auto reply = read_completion(host, text);
  if (reply.kind != Kind::missing) return reply;
  const auto invalid = [&](std::string_view defect) {
    reply.kind = Kind::invalid;
    reply.defect = defect;
    return reply;
  };
  const auto* params = reply.choice.find("disaggregated_params");
  if (is_absent(params) || json_text::is_empty_object(reply.choice.raw(*params))) return reply;
  reply.params = host.json(reply.choice.raw(*params));
  if (!reply.params.is_object()) return invalid("disaggregated_params is not an object");
  if (const auto defect = find_params_defect(reply.params); !defect.empty()) return invalid(defect);
  if (const auto defect = read_prompt_ids(reply, api); !defect.empty()) return invalid(defect);
  reply.kind = Kind::handoff;
  return reply;
}

}  // namespace handoff::trtllm
