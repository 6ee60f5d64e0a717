#include "backends/sglang/reply_check.hpp"

#include <algorithm>
#include <array>

#include "backends/json_text/values.hpp"

namespace handoff::sglang {
namespace {

using json_text::find_member;
using json_text::find_members;
using json_text::plain_string;

constexpr std::array<std::string_view, 5> kOrdinaryEnds{"stop", "length", "tool_calls", "function_call",
                                                        "content_filter"};

bool is_set(std::optional<std::string_view> value) {
  return value && *value != "null";
}

bool is_ordinary(std::optional<std::string_view> finish) {
  const auto text = finish ? plain_string(*finish) : std::nullopt;
  return text && std::find(kOrdinaryEnds.begin(), kOrdinaryEnds.end(), *text) != kOrdinaryEnds.end();
}

std::uint32_t status_of(std::optional<std::string_view> code) {
  const auto number = code ? json_text::plain_integer(*code, 599) : -1;
  if (number >= 400 && number < 500) return static_cast<std::uint32_t>(number);
  const bool known = number == 500 || number == 503 || number == 504;
  return known ? static_cast<std::uint32_t>(number) : 502;
}

std::optional<std::string_view> finish_in(std::optional<std::string_view> meta_info) {
  return meta_info ? find_member(*meta_info, "finish_reason") : std::nullopt;
}

std::string_view generate_defect(std::string_view item) {
  const auto [error, meta_info] = find_members<2>(item, {"error", "meta_info"});
  if (is_set(error)) return "it reports an error";
  const auto finish = finish_in(meta_info);
  if (!finish || !is_ordinary(find_member(*finish, "type")))
    return "meta_info.finish_reason is no ordinary end";
  return {};
}

std::string_view choices_defect(std::optional<std::string_view> choices, std::size_t wanted) {
  json_text::Items items(choices.value_or(std::string_view{}));
  if (!items.is_list()) return "choices is not a list";
  std::size_t count = 0;
  while (const auto choice = items.next()) {
    ++count;
    if (!is_ordinary(find_member(*choice, "finish_reason")))
      return "choices.finish_reason is no ordinary end";
  }
  return count == wanted ? std::string_view{} : "choices has another length than the request";
}

std::string_view batch_defect(std::string_view reply, std::size_t wanted) {
  json_text::Items items(reply);
  if (!items.is_list()) return "it is not a list, as the answer to a batch is";
  std::size_t count = 0;
  while (const auto item = items.next()) {
    ++count;
    if (const auto defect = generate_defect(*item); !defect.empty()) return defect;
  }
  return count == wanted ? std::string_view{} : "it has another length than the request";
}

bool is_4xx(std::uint32_t status) {
  return status / 100 == 4;
}

/// Streams wrap the object that is else the whole body; `/generate` has its wrapper always.
std::string own_words(std::string_view object, std::string_view error) {
  return std::string(find_member(error, "object") == "\"error\"" ? error : object);
}

std::string words_of_abort(std::optional<std::string_view> message) {
  if (!message || message->empty() || message->front() != '"') return {};
  return R"({"error":{"message":)" + std::string(*message) + "}}";
}

std::optional<ReportedFailure> failure_of(std::string_view object) {
  const auto [error, kind, code, retryable, meta_info] =
      find_members<5>(object, {"error", "object", "code", "retryable", "meta_info"});
  if (is_set(error)) {
    const auto [own_code, own_retryable] = find_members<2>(*error, {"code", "retryable"});
    ReportedFailure failure{status_of(own_code), own_retryable == "true"};
    if (is_4xx(failure.status)) failure.answer = own_words(object, *error);
    return failure;
  }
  if (kind == "\"error\"") {
    ReportedFailure failure{status_of(code), retryable == "true"};
    if (is_4xx(failure.status)) failure.answer = object;
    return failure;
  }
  const auto finish = finish_in(meta_info);
  if (!finish) return std::nullopt;
  const auto [type, status, message] = find_members<3>(*finish, {"type", "status_code", "message"});
  if (type != "\"abort\"" || !is_set(status)) return std::nullopt;
  ReportedFailure failure{status_of(status)};
  if (is_4xx(failure.status)) failure.answer = words_of_abort(message);
  return failure;
}

}  // namespace

std::string_view find_prefill_defect(const sdk::Host& host, std::string_view reply,
                                     const RequestShape& shape) {
  if (shape.is_generate && shape.items) return batch_defect(reply, *shape.items);
  if (!host.json(reply).is_object()) return "it is not a JSON object";
  const auto [error, object, choices] = find_members<3>(reply, {"error", "object", "choices"});
  if (is_set(error) || object == "\"error\"") return "it reports an error";
  return shape.is_generate ? generate_defect(reply) : choices_defect(choices, shape.items.value_or(1));
}

std::optional<ReportedFailure> find_reported_failure(std::string_view reply) {
  json_text::Items items(reply);
  if (!items.is_list()) return failure_of(reply);
  while (const auto item = items.next()) {
    if (const auto failure = failure_of(*item)) return failure;
  }
  return std::nullopt;
}

}  // namespace handoff::sglang
