#include "backends/trtllm/finished_answer.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "backends/json_text/json_text.hpp"
#include "backends/json_text/values.hpp"
#include "backends/trtllm/request_shape.hpp"

namespace handoff::trtllm {
namespace {

std::string joined(const std::vector<handoff_piece>& pieces, std::string_view original) {
  std::string text;
  for (const auto& piece : pieces) {
    text += piece.data == nullptr ? original.substr(piece.offset, piece.size)
                                  : std::string_view(piece.data, piece.size);
  }
  return text;
}

/// Appends `"name":value` from an object; nothing if it has no such member. The text goes into an event's
/// line, which a line end between two tokens would cut.
void copy_member(std::string& out, const sdk::Object& from, std::string_view name) {
  const auto* member = from.find(name);
  if (member == nullptr) return;
  if (out.back() != '{') out += ',';
  out.append("\"").append(name).append("\":");
  const auto at = out.size();
  out += from.raw(*member);
  std::replace_if(
      out.begin() + static_cast<std::ptrdiff_t>(at), out.end(), [](char c) { return c == '\n' || c == '\r'; },
      ' ');
}

/// `{"id":…,"object":…,"created":…,"model":…`: how every event begins.
std::string event_head(const sdk::Object& answer, Api api) {
  std::string head = "{";
  copy_member(head, answer, "id");
  if (head.size() > 1) head += ',';
  head += api == Api::chat ? R"("object":"chat.completion.chunk")" : R"("object":"text_completion")";
  copy_member(head, answer, "created");
  copy_member(head, answer, "model");
  return head;
}

/// A tool call in a delta says which one it is.
void copy_tool_calls(std::string& delta, const sdk::Host& host, const sdk::Object& message) {
  const auto* member = message.find("tool_calls");
  if (member == nullptr || member->kind != HANDOFF_JSON_ARRAY) return;
  json_text::Items items(message.raw(*member));
  std::string calls;
  for (std::size_t index = 0; const auto item = items.next(); ++index) {
    std::string call = R"({"index":)" + std::to_string(index);
    const auto object = host.json(*item);
    for (const std::string_view name : {"id", "type", "function"}) copy_member(call, object, name);
    calls.append(calls.empty() ? "" : ",").append(call).append("}");
  }
  if (calls.empty()) return;
  if (delta.back() != '{') delta += ',';
  delta.append(R"("tool_calls":[)").append(calls).append("]");
}

/// What the phase generated, as the first event has it.
std::string generated_part(const sdk::Host& host, const sdk::Object& choice, Api api) {
  std::string part = R"({"index":0)";
  if (api == Api::completions) {
    copy_member(part, choice, "text");
  } else {
    std::string delta = "{";
    const auto* member = choice.find("message");
    if (member != nullptr && member->kind == HANDOFF_JSON_OBJECT) {
      const auto message = host.json(choice.raw(*member));
      for (const std::string_view name : {"role", "content", "reasoning_content", "reasoning"}) {
        copy_member(delta, message, name);
      }
      copy_tool_calls(delta, host, message);
    }
    part += R"(,"delta":)" + delta + "}";
  }
  copy_member(part, choice, "token_ids");
  copy_member(part, choice, "logprobs");
  return part + R"(,"finish_reason":null})";
}

std::string finish_part(const sdk::Object& choice, Api api) {
  std::string part = R"({"index":0)";
  part += api == Api::chat ? R"(,"delta":{})" : R"(,"text":"")";
  copy_member(part, choice, "finish_reason");
  copy_member(part, choice, "stop_reason");
  return part + "}";
}

bool asks_for(const sdk::Host& host, const sdk::Object& body, std::string_view option) {
  const auto* options = body.find("stream_options");
  if (options == nullptr || options->kind != HANDOFF_JSON_OBJECT) return false;
  const auto object = host.json(body.raw(*options));
  const auto* member = object.find(option);
  return member != nullptr && json_text::reads_as_true(object.raw(*member));
}

std::string whole_answer(const ContextReply& reply) {
  const auto& answer = reply.answer;
  const auto& choices = *answer.find("choices");
  sdk::BodyEdit choice(reply.choice, choices.value_begin + 1);
  choice.remove("disaggregated_params");
  std::vector<handoff_piece> list{{"[", 0, 1}};
  for (const auto& piece : choice.pieces()) list.push_back(piece);
  list.push_back({"]", 0, 1});
  sdk::BodyEdit edit(answer);
  edit.remove("prompt_token_ids");
  edit.remove("prompt_token_ids_b64");
  edit.set("choices", std::move(list));
  return joined(edit.pieces(), answer.text());
}

std::string streamed_answer(const sdk::Host& host, const ContextReply& reply, const sdk::Object& body,
                            Api api) {
  const std::string head = event_head(reply.answer, api);
  std::string usage;
  if (reply.answer.find("usage") != nullptr && asks_for(host, body, "include_usage")) {
    usage = "{";
    copy_member(usage, reply.answer, "usage");
    usage.replace(0, 1, ",");
  }
  const std::string in_each = asks_for(host, body, "continuous_usage_stats") ? usage : std::string();
  std::string events;
  const std::array parts{generated_part(host, reply.choice, api), finish_part(reply.choice, api)};
  for (const auto& part : parts) {
    events.append("data: ").append(head).append(R"(,"choices":[)").append(part).append("]");
    events.append(in_each).append("}\n\n");
  }
  if (!usage.empty()) events.append("data: ").append(head).append(R"(,"choices":[])" + usage + "}\n\n");
  return events += "data: [DONE]\n\n";
}

}  // namespace

void answer_from_context(const sdk::Host& host, const ContextReply& reply, const sdk::Object& body, Api api,
                         sdk::Turn& turn) {
  host.count("finished_in_context");
  const bool streamed = wants_stream(body);
  const std::string answer = streamed ? streamed_answer(host, reply, body, api) : whole_answer(reply);
  const std::array headers{
      sdk::header("content-type", streamed ? "text/event-stream; charset=utf-8" : "application/json")};
  const std::array pieces{handoff_piece{answer.data(), 0, answer.size()}};
  turn.respond(200, headers, pieces);
}

}  // namespace handoff::trtllm
