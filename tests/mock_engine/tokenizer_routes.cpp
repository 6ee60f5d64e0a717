// Token ids for whoever asks: vLLM's tokenize and render endpoints, or SGLang's (--tokenizer-api). Bodies are
// built in plain functions: GCC 12 cannot keep the initializer lists of JSON objects in a coroutine frame.
#include <limits>
#include <utility>
#include <variant>

#include "exchange.hpp"
#include "prompt_text.hpp"

namespace handoff::mock {
namespace {

using Outcome = std::variant<Reply, ApiError>;

bool speaks_sglang(const Exchange& exchange) {
  return exchange.services.config.tokenizer_api == TokenizerApi::kSglang;
}

Reply token_strings(const Tokens& tokens) {
  Reply strings = Reply::array();
  for (const Token token : tokens) strings.push_back(token_text(token));
  return strings;
}

// SGLang takes a list of prompts too and answers with lists then. Its max_model_len is the tokenizer's, often
// a huge number.
Outcome tokenized(const MockConfig& config, const Json& body) {
  const bool sglang = config.tokenizer_api == TokenizerApi::kSglang;
  Reply out;
  if (body.contains("messages")) {
    const PromptText prompt = checked_chat_prompt_text(body);
    if (!prompt.error.empty()) return invalid_field("messages", prompt.error);
    const Tokens tokens = encode(prompt.text);
    out["tokens"] = tokens;
    out["count"] = tokens.size();
    if (body.value("return_token_strs", Json(false)) == true) out["token_strs"] = token_strings(tokens);
  } else if (body.contains("prompt") && body["prompt"].is_string()) {
    const Tokens tokens = encode(body["prompt"].get<std::string>());
    out["tokens"] = tokens;
    out["count"] = tokens.size();
    if (body.value("return_token_strs", Json(false)) == true) out["token_strs"] = token_strings(tokens);
  } else if (sglang && body.contains("prompt") && body["prompt"].is_array()) {
    out["tokens"] = Reply::array();
    out["count"] = Reply::array();
    for (const Json& one : body["prompt"]) {
      if (!one.is_string()) return invalid_field("prompt", "Input should be a valid string");
      const Tokens tokens = encode(one.get<std::string>());
      out["tokens"].push_back(tokens);
      out["count"].push_back(tokens.size());
    }
  } else {
    return invalid_field("prompt", "Field required");
  }
  out["max_model_len"] = sglang ? std::numeric_limits<std::int64_t>::max() : config.context_limit();
  if (!sglang && !out.contains("token_strs")) out["token_strs"] = nullptr;
  return out;
}

Outcome detokenized(const MockConfig& config, const Json& body) {
  const auto list = body.find("tokens");
  if (list == body.end() || !list->is_array()) return invalid_field("tokens", "Field required");
  Tokens tokens;
  for (const Json& token : *list) {
    if (!token.is_number_integer()) return invalid_field("tokens", "Input should be a valid integer");
    tokens.push_back(token.get<std::int64_t>());
  }
  const char* name = config.tokenizer_api == TokenizerApi::kSglang ? "text" : "prompt";
  return Reply{{name, decode(tokens)}};
}

Reply rendered(const ApiRequest& request, const Tokens& tokens, const std::string& id, bool sglang) {
  Reply sampling;
  sampling["max_tokens"] = request.limit;
  sampling["min_tokens"] = request.min_tokens;
  sampling["n"] = request.n;
  sampling["temperature"] = Reply(request.body.value("temperature", Json(1.0)));
  sampling["stop"] = request.stop;
  sampling["ignore_eos"] = request.ignore_eos;
  sampling["extra_args"] = nullptr;
  if (!request.kv_params.is_null())
    sampling["extra_args"] = {{"kv_transfer_params", Reply(request.kv_params)}};
  Reply out;
  out[sglang ? "rid" : "request_id"] = id;
  out[sglang ? "input_ids" : "token_ids"] = tokens;
  out["sampling_params"] = sampling;
  out["model"] = request.model;
  out["stream"] = request.stream;
  if (sglang) return out;
  out["stream_options"] = Reply(request.body.value("stream_options", Json()));
  out["cache_salt"] = Reply(request.body.value("cache_salt", Json()));
  out["priority"] = 0;
  out["features"] = nullptr;
  out["kv_transfer_params"] = Reply(request.kv_params);
  return out;
}

Outcome rendered_all(Exchange& exchange, const Json& body, Api api) {
  const auto parsed = parse_api_request(api, body, exchange.services.config);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  const ApiRequest& request = std::get<ApiRequest>(parsed);
  const std::string* header = exchange.header("x-request-id");
  const std::string id = header ? *header : exchange.services.engine.random().hex(32);
  if (api == Api::kChat)
    return rendered(request, request.prompts.front(), "chatcmpl-" + id, speaks_sglang(exchange));
  Reply out = Reply::array();
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    out.push_back(rendered(request, request.prompts[i], "cmpl-" + id + "-" + std::to_string(i), false));
  }
  return out;
}

Awaitable<void> answer(Exchange& exchange, Outcome outcome) {
  if (const ApiError* error = std::get_if<ApiError>(&outcome)) {
    co_await answer_error(exchange, Api::kChat, *error);
    co_return;
  }
  co_await sleep_for(exchange.plan.delay_after);
  co_await answer_json(exchange, 200, dump(std::get<Reply>(outcome)));
}

}  // namespace

ApiError invalid_field(const std::string& field, const std::string& rule) {
  return {400, "1 validation error: {'loc': ('body', '" + field + "'), 'msg': '" + rule + "'}", field};
}

Awaitable<bool> serve_render_route(Exchange& exchange, const Json& body) {
  if (exchange.path == "/v1/chat/completions/render") {
    co_await answer(exchange, rendered_all(exchange, body, Api::kChat));
  } else if (exchange.path == "/v1/completions/render" && !speaks_sglang(exchange)) {
    co_await answer(exchange, rendered_all(exchange, body, Api::kCompletions));
  } else {
    co_return false;
  }
  co_return true;
}

Awaitable<bool> serve_tokenize_route(Exchange& exchange, const Json& body) {
  const std::string& path = exchange.path;
  if (path == "/tokenize" || (path == "/v1/tokenize" && speaks_sglang(exchange))) {
    co_await answer(exchange, tokenized(exchange.services.config, body));
  } else if (path == "/detokenize" || (path == "/v1/detokenize" && speaks_sglang(exchange))) {
    co_await answer(exchange, detokenized(exchange.services.config, body));
  } else {
    co_return false;
  }
  co_return true;
}

}  // namespace handoff::mock
