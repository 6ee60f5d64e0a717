// /v1/completions
#include <utility>

#include "reply_format.hpp"

namespace handoff::mock {
namespace {

class CompletionFormat final : public ReplyFormat {
 public:
  explicit CompletionFormat(ReplyContext context)
      : ReplyFormat(std::move(context)), id_("cmpl-" + context_.id) {}

  Reply whole() const override {
    Reply out = header();
    for (const Completion& answer : context_.answers) {
      Reply choice;
      choice["index"] = answer.index;
      choice["text"] = prefix(answer) + answer.text;
      choice["logprobs"] = logprobs(answer, 0, answer.tokens.size());
      choice["finish_reason"] = answer.finish_reason;
      choice["stop_reason"] = Reply(answer.stop_reason);
      const bool ids = context_.request.return_token_ids;
      choice["token_ids"] = ids ? Reply(answer.tokens) : Reply(nullptr);
      choice["prompt_logprobs"] = nullptr;
      choice["prompt_token_ids"] = ids ? Reply(context_.request.prompts[answer.prompt]) : Reply(nullptr);
      out["choices"].push_back(choice);
    }
    out["service_tier"] = nullptr;
    out["system_fingerprint"] = nullptr;
    out["usage"] = usage_json(context_.usage);
    out["kv_transfer_params"] = context_.kv_params;
    return out;
  }

  std::string start() override { return {}; }

  std::string token(const Completion& answer, std::size_t position) override {
    const bool last = position + 1 == answer.tokens.size();
    const std::string text = (position == 0 ? prefix(answer) : std::string()) + answer.pieces[position];
    return chunk(answer, text, logprobs(answer, position, position + 1), last);
  }

  std::string choice_end(const Completion& answer) override {
    // The last token's chunk carries the finish reason; an answer without tokens still needs one.
    return answer.tokens.empty() ? chunk(answer, "", nullptr, true) : std::string();
  }

  std::string end() override {
    std::string out;
    if (context_.request.include_usage) {
      Reply usage = header();
      usage["usage"] = usage_json(context_.usage);
      out += sse(usage);
    }
    return out + "data: [DONE]\n\n";
  }

 private:
  Reply header() const {
    Reply out;
    out["id"] = id_;
    out["object"] = "text_completion";
    out["created"] = context_.created;
    out["model"] = context_.request.model;
    out["choices"] = Reply::array();
    return out;
  }

  std::string prefix(const Completion& answer) const {
    return context_.request.echo ? context_.request.prompt_texts[answer.prompt] : std::string();
  }

  Reply logprobs(const Completion& answer, std::size_t from, std::size_t to) const {
    if (!context_.request.logprobs) return nullptr;
    Reply out;
    out["text_offset"] = Reply::array();
    out["token_logprobs"] = Reply::array();
    out["tokens"] = Reply::array();
    out["top_logprobs"] = Reply::array();
    std::size_t offset = 0;
    for (std::size_t i = 0; i < to; ++i) {
      const std::string text = token_text(answer.tokens[i]);
      if (i >= from) {
        const double probability = log_probability(answer.tokens[i]);
        out["text_offset"].push_back(offset);
        out["token_logprobs"].push_back(probability);
        out["tokens"].push_back(text);
        Reply top = Reply::object();
        top[text] = probability;
        for (std::int64_t other = 1; other < *context_.request.logprobs; ++other) {
          top[token_text(word_token(static_cast<std::uint64_t>(answer.tokens[i]), other))] =
              probability - 0.5 * static_cast<double>(other);
        }
        out["top_logprobs"].push_back(top);
      }
      offset += text.size();
    }
    return out;
  }

  std::string chunk(const Completion& answer, const std::string& text, Reply logprob, bool last) const {
    Reply choice;
    choice["index"] = answer.index;
    choice["text"] = text;
    choice["logprobs"] = std::move(logprob);
    choice["finish_reason"] = last ? Reply(answer.finish_reason) : Reply(nullptr);
    choice["stop_reason"] = last ? Reply(answer.stop_reason) : Reply(nullptr);
    Reply out = header();
    out["choices"].push_back(choice);
    if (context_.request.usage_in_each_chunk) out["usage"] = usage_json(context_.usage);
    return sse(out);
  }

  std::string id_;
};

}  // namespace

std::unique_ptr<ReplyFormat> make_completion_format(ReplyContext context) {
  return std::make_unique<CompletionFormat>(std::move(context));
}

}  // namespace handoff::mock
