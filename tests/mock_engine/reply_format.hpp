// How each API spells an answer: one JSON object, or a sequence of server-sent events. Pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "answers.hpp"

namespace handoff::mock {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
};

// What every format needs. The references belong to the running request and outlive the format.
struct ReplyContext {
  const ApiRequest& request;
  const std::vector<Completion>& answers;
  std::string id;  // X-Request-Id, or random
  std::int64_t created = 0;
  Usage usage;
  Reply kv_params = nullptr;
};

// One per request. whole() for a plain reply; for a stream start(), token() for each token of each choice in
// time order, choice_end() after a choice's last token, end().
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  virtual Reply whole() const = 0;
  virtual std::string start() = 0;
  virtual std::string token(const Completion& answer, std::size_t position) = 0;
  virtual std::string choice_end(const Completion& answer) = 0;
  virtual std::string end() = 0;
  // In-band failure after the head of a stream is out.
  virtual std::string failure(const ApiError& error) const;

  // Set when the reply is about to be built; earlier it is not known.
  void set_kv_params(Reply params) { context_.kv_params = std::move(params); }
  const ReplyContext& context() const { return context_; }

 protected:
  explicit ReplyFormat(ReplyContext context) : context_(std::move(context)) {}

  ReplyContext context_;
};

std::unique_ptr<ReplyFormat> make_chat_format(ReplyContext context);
std::unique_ptr<ReplyFormat> make_completion_format(ReplyContext context);
std::unique_ptr<ReplyFormat> make_responses_format(ReplyContext context);
std::unique_ptr<ReplyFormat> make_messages_format(ReplyContext context);
std::unique_ptr<ReplyFormat> make_generate_format(ReplyContext context);
std::unique_ptr<ReplyFormat> make_reply_format(ReplyContext context);

Reply usage_json(const Usage& usage);
std::string sse(const Reply& event);
std::string sse(const char* name, const Reply& event);

}  // namespace handoff::mock
