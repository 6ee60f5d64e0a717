#include "reply_format.hpp"

#include <utility>

namespace handoff::mock {

std::string ReplyFormat::failure(const ApiError& error) const {
  return "data: " + error_body(context_.request.api, error) + "\n\ndata: [DONE]\n\n";
}

std::unique_ptr<ReplyFormat> make_reply_format(ReplyContext context) {
  switch (context.request.api) {
    case Api::kCompletions:
      return make_completion_format(std::move(context));
    case Api::kChat:
      return make_chat_format(std::move(context));
    case Api::kResponses:
      return make_responses_format(std::move(context));
    case Api::kMessages:
      return make_messages_format(std::move(context));
    case Api::kGenerate:
      return make_generate_format(std::move(context));
  }
  return nullptr;
}

Reply usage_json(const Usage& usage) {
  Reply out;
  out["prompt_tokens"] = usage.prompt_tokens;
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  return out;
}

std::string sse(const Reply& event) {
  return "data: " + dump(event) + "\n\n";
}

std::string sse(const char* name, const Reply& event) {
  return "event: " + std::string(name) + "\ndata: " + dump(event) + "\n\n";
}

}  // namespace handoff::mock
