// /v1/responses. The only API whose stream carries handoff parameters: inside the final event's response
// object.
#include <utility>

#include "reply_format.hpp"

namespace handoff::mock {
namespace {

class ResponsesFormat final : public ReplyFormat {
 public:
  explicit ResponsesFormat(ReplyContext context) : ReplyFormat(std::move(context)) {}

  Reply whole() const override { return response(true); }

  std::string start() override {
    std::string out = event("response.created", {{"response", response(false)}});
    out += event("response.in_progress", {{"response", response(false)}});
    out += event("response.output_item.added", {{"output_index", 0}, {"item", item(false)}});
    if (!tool()) out += event("response.content_part.added", place({{"part", text_part("")}}));
    return out;
  }

  std::string token(const Completion& answer, std::size_t position) override {
    if (tool()) {
      if (position != 0) return {};
      return event("response.function_call_arguments.delta",
                   {{"item_id", item_id()}, {"output_index", 0}, {"delta", tool_arguments(answer)}});
    }
    if (answer.pieces[position].empty()) return {};
    return event("response.output_text.delta",
                 place({{"delta", answer.pieces[position]}, {"logprobs", Reply::array()}}));
  }

  std::string choice_end(const Completion& answer) override {
    std::string out;
    if (tool()) {
      out = event("response.function_call_arguments.done", {{"item_id", item_id()},
                                                            {"output_index", 0},
                                                            {"name", *context_.request.forced_tool},
                                                            {"arguments", tool_arguments(answer)}});
    } else {
      out = event("response.output_text.done", place({{"text", answer.text}, {"logprobs", Reply::array()}}));
      out += event("response.content_part.done", place({{"part", text_part(answer.text)}}));
    }
    return out + event("response.output_item.done", {{"output_index", 0}, {"item", item(true)}});
  }

  std::string end() override { return event("response.completed", {{"response", response(true)}}); }

  std::string failure(const ApiError& error) const override {
    return "event: error\ndata: " + error_body(Api::kResponses, error) + "\n\ndata: [DONE]\n\n";
  }

 private:
  bool tool() const { return context_.request.forced_tool.has_value(); }
  std::string item_id() const { return (tool() ? "fc_" : "msg_") + context_.id; }
  const Completion& answer() const { return context_.answers.front(); }

  std::string event(const char* name, Reply members) {
    Reply out;
    out["type"] = name;
    out["sequence_number"] = sequence_++;
    out.update(members);
    return sse(name, out);
  }

  Reply place(Reply members) const {
    Reply out;
    out["item_id"] = item_id();
    out["output_index"] = 0;
    out["content_index"] = 0;
    out.update(members);
    return out;
  }

  static Reply text_part(const std::string& text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Reply::array()},
            {"logprobs", Reply::array()}};
  }

  Reply item(bool done) const {
    Reply out;
    out["id"] = item_id();
    if (tool()) {
      out["type"] = "function_call";
      out["call_id"] = "call_" + context_.id;
      out["name"] = *context_.request.forced_tool;
      out["arguments"] = done ? tool_arguments(answer()) : std::string();
    } else {
      out["type"] = "message";
      out["role"] = "assistant";
      out["content"] = done ? Reply::array({text_part(answer().text)}) : Reply::array();
    }
    out["status"] = done ? "completed" : "in_progress";
    return out;
  }

  Reply response(bool done) const {
    const bool cut = done && answer().finish_reason == "length";
    Reply out;
    out["id"] = "resp_" + context_.id;
    out["object"] = "response";
    out["created_at"] = context_.created;
    out["status"] = !done ? "in_progress" : cut ? "incomplete" : "completed";
    out["error"] = nullptr;
    out["incomplete_details"] = cut ? Reply{{"reason", "max_output_tokens"}} : Reply(nullptr);
    out["instructions"] = nullptr;
    out["max_output_tokens"] = context_.request.limit;
    out["metadata"] = Reply::object();
    out["model"] = context_.request.model;
    out["output"] = done ? Reply::array({item(true)}) : Reply::array();
    out["parallel_tool_calls"] = true;
    out["temperature"] = 1.0;
    out["tool_choice"] = "auto";
    out["tools"] = Reply::array();
    out["top_p"] = 1.0;
    out["background"] = false;
    out["service_tier"] = "auto";
    out["truncation"] = "disabled";
    out["usage"] = nullptr;
    if (done) {
      const Usage& usage = context_.usage;
      out["usage"] = {{"input_tokens", usage.prompt_tokens},
                      {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                      {"output_tokens", usage.completion_tokens},
                      {"output_tokens_details", {{"reasoning_tokens", 0}}},
                      {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
    }
    out["kv_transfer_params"] = done ? context_.kv_params : Reply(nullptr);
    return out;
  }

  std::int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_responses_format(ReplyContext context) {
  return std::make_unique<ResponsesFormat>(std::move(context));
}

}  // namespace handoff::mock
