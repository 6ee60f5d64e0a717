// /inference/v1/generate: tokens in, tokens out, no text.
#include <utility>

#include "reply_format.hpp"

namespace handoff::mock {
namespace {

class GenerateFormat final : public ReplyFormat {
 public:
  explicit GenerateFormat(ReplyContext context)
      : ReplyFormat(std::move(context)), id_("generate-tokens-" + context_.id) {}

  Reply whole() const override {
    Reply out;
    out["request_id"] = id_;
    out["model"] = context_.request.model;
    out["created"] = context_.created;
    out["choices"] = Reply::array();
    for (const Completion& answer : context_.answers) {
      Reply choice;
      choice["index"] = answer.index;
      choice["logprobs"] = nullptr;
      choice["finish_reason"] = answer.finish_reason;
      choice["token_ids"] = answer.tokens;
      choice["routed_experts"] = nullptr;
      out["choices"].push_back(choice);
    }
    out["usage"] = usage_json(context_.usage);
    out["prompt_logprobs"] = nullptr;
    out["kv_transfer_params"] = context_.kv_params;
    return out;
  }

  std::string start() override { return {}; }

  std::string token(const Completion& answer, std::size_t position) override {
    const bool last = position + 1 == answer.tokens.size();
    return chunk(answer, Reply::array({answer.tokens[position]}), last);
  }

  std::string choice_end(const Completion& answer) override {
    return answer.tokens.empty() ? chunk(answer, Reply::array(), true) : std::string();
  }

  std::string end() override {
    std::string out;
    if (context_.request.include_usage) {
      out +=
          sse(Reply{{"request_id", id_}, {"choices", Reply::array()}, {"usage", usage_json(context_.usage)}});
    }
    return out + "data: [DONE]\n\n";
  }

 private:
  std::string chunk(const Completion& answer, Reply tokens, bool last) const {
    Reply choice;
    choice["index"] = answer.index;
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = last ? Reply(answer.finish_reason) : Reply(nullptr);
    choice["token_ids"] = std::move(tokens);
    Reply out;
    out["request_id"] = id_;
    out["choices"] = Reply::array({choice});
    return sse(out);
  }

  std::string id_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_generate_format(ReplyContext context) {
  return std::make_unique<GenerateFormat>(std::move(context));
}

}  // namespace handoff::mock
