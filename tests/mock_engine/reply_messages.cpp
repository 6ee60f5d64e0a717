// /v1/messages, the Anthropic form.
#include <utility>

#include "reply_format.hpp"

namespace handoff::mock {
namespace {

class MessagesFormat final : public ReplyFormat {
 public:
  explicit MessagesFormat(ReplyContext context) : ReplyFormat(std::move(context)) {}

  Reply whole() const override {
    Reply out = header();
    const Completion& answer = context_.answers.front();
    if (context_.request.forced_tool) {
      out["content"].push_back(tool_block(Reply(*parse_json(tool_arguments(answer)))));
    } else {
      out["content"].push_back({{"type", "text"}, {"text", answer.text}});
    }
    out["stop_reason"] = stop_reason(answer);
    out["stop_sequence"] = Reply(answer.stop_reason);
    out["usage"] = {{"input_tokens", context_.usage.prompt_tokens},
                    {"output_tokens", context_.usage.completion_tokens}};
    out["kv_transfer_params"] = context_.kv_params;
    return out;
  }

  std::string start() override {
    Reply message = header();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = {{"input_tokens", context_.usage.prompt_tokens}, {"output_tokens", 0}};
    const Reply block =
        context_.request.forced_tool ? tool_block(Reply::object()) : Reply{{"type", "text"}, {"text", ""}};
    return sse("message_start", {{"type", "message_start"}, {"message", message}}) +
           sse("content_block_start",
               {{"type", "content_block_start"}, {"index", 0}, {"content_block", block}});
  }

  std::string token(const Completion& answer, std::size_t position) override {
    Reply delta;
    if (!context_.request.forced_tool) {
      delta = {{"type", "text_delta"}, {"text", answer.pieces[position]}};
    } else if (position == 0) {
      delta = {{"type", "input_json_delta"}, {"partial_json", tool_arguments(answer)}};
    } else {
      return {};
    }
    return sse("content_block_delta", {{"type", "content_block_delta"}, {"index", 0}, {"delta", delta}});
  }

  std::string choice_end(const Completion& answer) override {
    const Reply delta{{"stop_reason", stop_reason(answer)}, {"stop_sequence", Reply(answer.stop_reason)}};
    const Reply usage{{"input_tokens", context_.usage.prompt_tokens},
                      {"output_tokens", context_.usage.completion_tokens}};
    return sse("content_block_stop", {{"type", "content_block_stop"}, {"index", 0}}) +
           sse("message_delta", {{"type", "message_delta"}, {"delta", delta}, {"usage", usage}});
  }

  std::string end() override { return sse("message_stop", {{"type", "message_stop"}}); }

  std::string failure(const ApiError& error) const override {
    return "event: error\ndata: " + error_body(Api::kMessages, error) + "\n\n";
  }

 private:
  Reply header() const {
    Reply out;
    out["id"] = "msg_" + context_.id;
    out["type"] = "message";
    out["role"] = "assistant";
    out["content"] = Reply::array();
    out["model"] = context_.request.model;
    return out;
  }

  Reply tool_block(Reply input) const {
    Reply block;
    block["type"] = "tool_use";
    block["id"] = "toolu_" + context_.id;
    block["name"] = *context_.request.forced_tool;
    block["input"] = std::move(input);
    return block;
  }

  std::string stop_reason(const Completion& answer) const {
    if (context_.request.forced_tool) return "tool_use";
    if (answer.finish_reason == "length") return "max_tokens";
    return answer.stop_reason.is_null() ? "end_turn" : "stop_sequence";
  }
};

}  // namespace

std::unique_ptr<ReplyFormat> make_messages_format(ReplyContext context) {
  return std::make_unique<MessagesFormat>(std::move(context));
}

}  // namespace handoff::mock
