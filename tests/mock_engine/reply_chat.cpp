// /v1/chat/completions
#include <algorithm>
#include <utility>

#include "reply_format.hpp"

namespace handoff::mock {
namespace {

Reply bytes_of(const std::string& text) {
  Reply bytes = Reply::array();
  for (const char c : text) bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  return bytes;
}

Reply token_logprob(Token token) {
  const std::string text = token_text(token);
  Reply out;
  out["token"] = text;
  out["logprob"] = log_probability(token);
  out["bytes"] = bytes_of(text);
  return out;
}

Reply logprob_content(const Completion& answer, std::size_t position, std::int64_t top) {
  const Token token = answer.tokens[position];
  Reply out = token_logprob(token);
  out["top_logprobs"] = Reply::array();
  for (std::int64_t i = 0; i < top; ++i) {
    Reply other = token_logprob(i == 0 ? token : word_token(static_cast<std::uint64_t>(token), i));
    other["logprob"] = log_probability(token) - 0.5 * static_cast<double>(i);
    out["top_logprobs"].push_back(other);
  }
  return out;
}

class ChatFormat final : public ReplyFormat {
 public:
  explicit ChatFormat(ReplyContext context)
      : ReplyFormat(std::move(context)), id_("chatcmpl-" + context_.id) {}

  Reply whole() const override {
    Reply out = header("chat.completion");
    for (const Completion& answer : context_.answers) out["choices"].push_back(choice(answer));
    out["service_tier"] = nullptr;
    out["system_fingerprint"] = nullptr;
    out["usage"] = usage_json(context_.usage);
    out["prompt_logprobs"] = nullptr;
    out["prompt_token_ids"] =
        context_.request.return_token_ids ? Reply(context_.request.prompts.front()) : Reply(nullptr);
    out["kv_transfer_params"] = context_.kv_params;
    return out;
  }

  std::string start() override {
    std::string out;
    for (const Completion& answer : context_.answers) {
      out += chunk(answer.index, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    }
    return out;
  }

  std::string token(const Completion& answer, std::size_t position) override {
    Reply logprobs = nullptr;
    if (context_.request.logprobs) {
      logprobs = {{"content", Reply::array({logprob_content(answer, position, *context_.request.logprobs)})}};
    }
    if (!context_.request.forced_tool) {
      if (answer.pieces[position].empty()) return {};
      return chunk(answer.index, {{"content", answer.pieces[position]}}, logprobs, nullptr);
    }
    std::string out;
    if (position == 0) out += chunk(answer.index, tool_delta(answer, true, ""), nullptr, nullptr);
    const std::string arguments = tool_arguments(answer);
    const std::size_t count = answer.tokens.size();
    const std::size_t from = position * arguments.size() / count;
    const std::size_t to = (position + 1) * arguments.size() / count;
    if (to > from) {
      out +=
          chunk(answer.index, tool_delta(answer, false, arguments.substr(from, to - from)), nullptr, nullptr);
    }
    return out;
  }

  std::string choice_end(const Completion& answer) override {
    return chunk(answer.index, {{"content", ""}}, nullptr, &answer);
  }

  std::string end() override {
    std::string out;
    if (context_.request.include_usage) {
      Reply usage = header("chat.completion.chunk");
      usage["usage"] = usage_json(context_.usage);
      out += sse(usage);
    }
    return out + "data: [DONE]\n\n";
  }

 private:
  Reply header(const char* object) const {
    Reply out;
    out["id"] = id_;
    out["object"] = object;
    out["created"] = context_.created;
    out["model"] = context_.request.model;
    out["choices"] = Reply::array();
    return out;
  }

  std::string finish_reason(const Completion& answer) const {
    return context_.request.forced_tool && answer.finish_reason != "error" ? "tool_calls"
                                                                           : answer.finish_reason;
  }

  std::string call_id(const Completion& answer) const {
    return "chatcmpl-tool-" + context_.id + "-" + std::to_string(answer.index);
  }

  Reply tool_delta(const Completion& answer, bool first, const std::string& arguments) const {
    Reply call;
    if (first) call["id"] = call_id(answer);
    if (first) call["type"] = "function";
    call["index"] = 0;
    if (first) call["function"]["name"] = *context_.request.forced_tool;
    call["function"]["arguments"] = arguments;
    return {{"tool_calls", Reply::array({call})}};
  }

  Reply choice(const Completion& answer) const {
    Reply message;
    message["role"] = "assistant";
    message["content"] = answer.text;
    message["refusal"] = nullptr;
    message["annotations"] = nullptr;
    message["audio"] = nullptr;
    message["function_call"] = nullptr;
    message["tool_calls"] = Reply::array();
    message["reasoning"] = nullptr;
    if (context_.request.forced_tool) {
      Reply call;
      call["id"] = call_id(answer);
      call["type"] = "function";
      call["function"] = {{"name", *context_.request.forced_tool}, {"arguments", tool_arguments(answer)}};
      message["content"] = "";
      message["tool_calls"].push_back(call);
    }
    Reply out;
    out["index"] = answer.index;
    out["message"] = message;
    out["logprobs"] = nullptr;
    if (context_.request.logprobs) {
      Reply content = Reply::array();
      for (std::size_t i = 0; i < answer.tokens.size(); ++i) {
        content.push_back(logprob_content(answer, i, *context_.request.logprobs));
      }
      out["logprobs"] = {{"content", content}};
    }
    out["finish_reason"] = finish_reason(answer);
    out["stop_reason"] = Reply(answer.stop_reason);
    out["token_ids"] = context_.request.return_token_ids ? Reply(answer.tokens) : Reply(nullptr);
    return out;
  }

  std::string chunk(std::int64_t index, Reply delta, Reply logprobs, const Completion* finished) const {
    Reply choice;
    choice["index"] = index;
    choice["delta"] = std::move(delta);
    choice["logprobs"] = std::move(logprobs);
    choice["finish_reason"] = finished ? Reply(finish_reason(*finished)) : Reply(nullptr);
    if (finished) choice["stop_reason"] = Reply(finished->stop_reason);
    Reply out = header("chat.completion.chunk");
    out["choices"].push_back(choice);
    if (context_.request.usage_in_each_chunk) out["usage"] = usage_json(context_.usage);
    return sse(out);
  }

  std::string id_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_chat_format(ReplyContext context) {
  return std::make_unique<ChatFormat>(std::move(context));
}

}  // namespace handoff::mock
