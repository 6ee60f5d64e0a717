#include "backends/vllm/finish_reason.hpp"

namespace handoff::vllm {
namespace {

/// The inside of a string member; empty for anything else.
std::string_view text_of(const sdk::Object& object, std::string_view name) {
  const auto* member = object.find(name);
  if (member == nullptr || member->kind != HANDOFF_JSON_STRING) return {};
  const auto quoted = object.raw(*member);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

std::string_view finish_reason(const sdk::Host& host, std::string_view json) {
  const auto answer = host.json(json);
  const auto* choices = answer.find("choices");
  if (choices == nullptr || choices->kind != HANDOFF_JSON_ARRAY) return {};
  const auto list = answer.raw(*choices);
  return text_of(host.json(list.substr(1, list.size() - 2)), "finish_reason");
}

bool is_answer(const sdk::Host& host, std::string_view json, const Endpoint& endpoint) {
  if (is_error(host, json)) return false;
  const bool responses = endpoint.path == kResponsesPath;
  if (!responses && endpoint.path != kMessagesPath) return !finish_reason(host, json).empty();
  const auto answer = host.json(json);
  const auto* parts = answer.find(responses ? "output" : "content");
  return parts != nullptr && parts->kind == HANDOFF_JSON_ARRAY;
}

bool ended_by_itself(const sdk::Host& host, std::string_view json, const Endpoint& endpoint) {
  if (endpoint.path == kResponsesPath) return text_of(host.json(json), "status") == "completed";
  const bool messages = endpoint.path == kMessagesPath;
  const auto reason = messages ? text_of(host.json(json), "stop_reason") : finish_reason(host, json);
  return !reason.empty() && reason != (messages ? "max_tokens" : "length");
}

bool is_error(const sdk::Host& host, std::string_view json) {
  const auto object = host.json(json);
  const auto* error = object.find("error");
  if (error != nullptr && error->kind != HANDOFF_JSON_NULL) return true;
  const auto* kind = object.find("object");  // of older releases: {"object":"error","message":…}
  return kind != nullptr && kind->kind == HANDOFF_JSON_STRING && object.raw(*kind) == "\"error\"";
}

bool reports_failure(const sdk::Host& host, std::string_view json) {
  const auto reason = finish_reason(host, json);
  return is_error(host, json) || reason == "abort" || reason == "error";
}

}  // namespace handoff::vllm
