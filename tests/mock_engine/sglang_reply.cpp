#include "sglang_reply.hpp"

#include <algorithm>
#include <utility>

#include "reply_format.hpp"

namespace handoff::mock {
namespace {

const char* type_of(int status) {
  if (status == 503) return "ServiceUnavailableError";
  return status >= 500 ? "InternalServerError" : "BadRequestError";
}

Reply flat_error(int status, const std::string& message) {
  Reply out;
  out["object"] = "error";
  out["message"] = message;
  out["type"] = type_of(status);
  out["param"] = nullptr;
  out["code"] = status;
  return out;
}

Reply logprob_entry(Token token, bool known) {
  return Reply::array({known ? Reply(log_probability(token)) : Reply(nullptr), token, nullptr});
}

Reply prompt_logprobs(const SglangAnswer& answer, const SglangTask& task) {
  Reply list = Reply::array();
  if (!answer.has_prompt_logprobs) return list;
  const Json& body = answer.request.whole.body;
  const auto wanted = body.find("logprob_start_len");
  if (wanted == body.end()) return list;
  // One for all, or one per item of a batch.
  const bool each = wanted->is_array() && task.item.answer < wanted->size();
  const Json& at = each ? (*wanted)[task.item.answer] : *wanted;
  if (!at.is_number_integer() || at.get<std::int64_t>() < 0) return list;
  const auto start = at.get<std::int64_t>();
  const Tokens& prompt = task.item.request.prompts.front();
  for (auto i = static_cast<std::size_t>(start); i < prompt.size(); ++i)
    list.push_back(logprob_entry(prompt[i], i > 0));
  return list;
}

Reply finish_of(const Completion& done) {
  Reply out;
  out["type"] = done.finish_reason;
  if (done.finish_reason == "length") out["length"] = done.token_count();
  if (done.finish_reason == "stop") out["matched"] = Reply(done.stop_reason);
  return out;
}

Reply abort_finish(const SglangFailure& failure) {
  Reply out;
  out["type"] = "abort";
  out["message"] = failure.message;
  out["status_code"] = failure.status == 0 ? Reply(nullptr) : Reply(failure.status);
  out["err_type"] = failure.status == 0 ? Reply(nullptr) : Reply(type_of(failure.status));
  return out;
}

// One object of /generate: `from` to `to` of the answer's tokens.
Reply generated(const SglangAnswer& answer, std::size_t at, std::size_t from, std::size_t to, Reply finish) {
  const SglangTask& task = *answer.tasks[at];
  const Completion& done = answer.answers[at];
  std::string text;
  Tokens ids;
  Reply output_logprobs = Reply::array();
  for (std::size_t i = from; i < to; ++i) {
    text += done.pieces[i];
    ids.push_back(done.tokens[i]);
    output_logprobs.push_back(logprob_entry(done.tokens[i], true));
  }
  Reply meta;
  meta["id"] = task.item.rid;
  meta["finish_reason"] = std::move(finish);
  meta["prompt_tokens"] = task.item.request.prompt_tokens();
  meta["weight_version"] = "default";
  if (answer.request.return_logprob) {
    meta["input_token_logprobs"] = prompt_logprobs(answer, task);
    meta["output_token_logprobs"] = output_logprobs;
  }
  meta["completion_tokens"] = to;
  meta["cached_tokens"] = task.cached_tokens;
  meta["e2e_latency"] = 0.1;
  meta["dp_rank"] = nullptr;
  Reply out;
  out["text"] = text;
  out["output_ids"] = ids;
  out["meta_info"] = meta;
  return out;
}

Reply usage_of(const SglangAnswer& answer) {
  Usage usage;
  usage.prompt_tokens = answer.request.whole.prompt_tokens();
  for (const Completion& done : answer.answers) usage.completion_tokens += done.token_count();
  for (const auto& task : answer.tasks) usage.cached_tokens += task->cached_tokens;
  Reply out = usage_json(usage);
  if (!answer.cache_report || usage.cached_tokens == 0) out["prompt_tokens_details"] = nullptr;
  return out;
}

Reply openai_header(const SglangAnswer& answer, bool chunk) {
  const bool chat = answer.request.api == SglangApi::kChat;
  Reply out;
  out["id"] = answer.request.rid;
  out["object"] = chat ? (chunk ? "chat.completion.chunk" : "chat.completion") : "text_completion";
  out["created"] = answer.created;
  out["model"] = answer.request.whole.model;
  out["choices"] = Reply::array();
  return out;
}

Reply choice_of(const SglangAnswer& answer, std::size_t at, const std::string& text, bool chunk, Reply finish,
                Reply matched) {
  Reply choice;
  choice["index"] = at;
  if (answer.request.api == SglangApi::kChat) {
    Reply words;
    words["role"] = "assistant";
    words["content"] = text;
    words["reasoning_content"] = nullptr;
    words["tool_calls"] = nullptr;
    choice[chunk ? "delta" : "message"] = words;
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = std::move(finish);
  choice["matched_stop"] = std::move(matched);
  return choice;
}

Reply openai_whole(const SglangAnswer& answer) {
  Reply out = openai_header(answer, false);
  for (std::size_t at = 0; at < answer.tasks.size(); ++at) {
    const Completion& done = answer.answers[at];
    const bool aborted = answer.tasks[at]->failure.has_value();
    out["choices"].push_back(choice_of(answer, at, aborted ? "" : done.text, false,
                                       aborted ? "abort" : done.finish_reason, Reply(done.stop_reason)));
  }
  out["usage"] = usage_of(answer);
  out["metadata"] = {{"weight_version", "default"}};
  return out;
}

Reply openai_chunk(const SglangAnswer& answer, std::size_t at, const std::string& text, Reply finish) {
  Reply out = openai_header(answer, true);
  out["choices"].push_back(choice_of(answer, at, text, true, std::move(finish), nullptr));
  if (answer.request.whole.usage_in_each_chunk) out["usage"] = usage_of(answer);
  return out;
}

std::string with_index(const SglangAnswer& answer, std::size_t at, Reply event) {
  if (answer.tasks.size() > 1 || answer.request.batch) event["index"] = at;
  return sse(event);
}

}  // namespace

std::string sglang_whole(const SglangAnswer& answer) {
  if (answer.request.api != SglangApi::kGenerate) return dump(openai_whole(answer));
  Reply list = Reply::array();
  for (std::size_t at = 0; at < answer.tasks.size(); ++at) {
    const Completion& done = answer.answers[at];
    const auto& failure = answer.tasks[at]->failure;
    list.push_back(generated(answer, at, 0, failure ? 0 : done.tokens.size(),
                             failure ? abort_finish(*failure) : finish_of(done)));
  }
  const bool single = !answer.request.batch && list.size() == 1;
  return dump(single ? list.front() : list);
}

std::string sglang_token(const SglangAnswer& answer, std::size_t at, std::size_t position) {
  const Completion& done = answer.answers[at];
  const bool last = position + 1 == done.tokens.size();
  if (answer.request.api == SglangApi::kGenerate) {
    const std::size_t from = answer.incremental ? position : 0;
    return with_index(answer, at,
                      generated(answer, at, from, position + 1, last ? finish_of(done) : Reply(nullptr)));
  }
  return sse(
      openai_chunk(answer, at, done.pieces[position], last ? Reply(done.finish_reason) : Reply(nullptr)));
}

std::string sglang_aborted(const SglangAnswer& answer, std::size_t at, std::size_t tokens) {
  if (answer.request.api == SglangApi::kGenerate) {
    const SglangFailure failure{0, "Abort in waiting queue"};
    return with_index(answer, at, generated(answer, at, 0, tokens, abort_finish(failure)));
  }
  return sse(openai_chunk(answer, at, "", "abort"));
}

std::string sglang_stream_end(const SglangAnswer& answer) {
  std::string out;
  if (answer.request.api != SglangApi::kGenerate && answer.request.whole.include_usage) {
    Reply usage = openai_header(answer, true);
    usage["usage"] = usage_of(answer);
    out = sse(usage);
  }
  return out + "data: [DONE]\n\n";
}

std::string sglang_error_body(SglangApi api, int status, const std::string& message) {
  if (api == SglangApi::kGenerate && status == 400) return dump(Reply{{"error", {{"message", message}}}});
  return dump(flat_error(status, message));
}

std::string sglang_error_events(const SglangAnswer& answer, std::size_t at, const SglangFailure& failure) {
  if (answer.request.api == SglangApi::kGenerate) {
    // An item that ends like any other, but for its finish reason.
    return with_index(answer, at, generated(answer, at, 0, 0, abort_finish(failure))) + "data: [DONE]\n\n";
  }
  if (failure.status == 0) return sglang_aborted(answer, at, 0) + "data: [DONE]\n\n";
  return sse(Reply{{"error", flat_error(failure.status, failure.message)}}) + "data: [DONE]\n\n";
}

std::string sglang_refused_events(const ApiError& error) {
  Reply inner;
  inner["message"] = error.message;
  inner["type"] = "invalid_request_error";
  inner["code"] = error.status;
  inner["retryable"] = false;
  return sse(Reply{{"error", inner}}) + "data: [DONE]\n\n";
}

}  // namespace handoff::mock
