#include "api_request.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "kv_params.hpp"
#include "prompt_text.hpp"
#include "tests/mock_engine/json_member.hpp"

namespace handoff::mock {
namespace {

// Thrown inside this file only: validation is a long list of checks, and parse_api_request() is its boundary.
struct Refused {
  ApiError error;
};

[[noreturn]] void refuse(std::string message, Json param = nullptr, int status = 400) {
  throw Refused{{status, std::move(message), std::move(param)}};
}

[[noreturn]] void refuse_field(const std::string& name, const std::string& rule) {
  refuse("1 validation error: {'loc': ('body', '" + name + "'), 'msg': '" + rule + "'}", name);
}

std::optional<std::int64_t> integer(const Json& object, const char* name, std::int64_t least,
                                    std::int64_t most = 1'000'000'000) {
  const Json* value = member(object, name);
  if (!value) return std::nullopt;
  const bool whole = value->is_number_integer() ||
                     (value->is_number_float() && std::floor(value->get<double>()) == value->get<double>() &&
                      std::abs(value->get<double>()) < 1e15);
  if (!whole) refuse_field(name, "Input should be a valid integer");
  const auto number =
      value->is_number_unsigned()
          ? static_cast<std::int64_t>(std::min<std::uint64_t>(value->get<std::uint64_t>(), 1ULL << 62))
          : value->get<std::int64_t>();
  if (number < least)
    refuse(std::string(name) + " must be at least " + std::to_string(least) + ", got " +
               std::to_string(number) + ".",
           name);
  if (number > most) refuse(std::string(name) + " must be at most " + std::to_string(most) + ".", name);
  return number;
}

// As pydantic reads them where a model is not strict.
std::optional<bool> lax_boolean(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) {
    const double number = value.get<double>();
    return number == 0 || number == 1 ? std::optional(number == 1) : std::nullopt;
  }
  if (!value.is_string()) return std::nullopt;
  std::string word = value.get<std::string>();
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* yes : {"1", "on", "t", "true", "y", "yes"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"0", "off", "f", "false", "n", "no"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

bool boolean(const Json& object, const char* name) {
  const Json* value = member(object, name);
  if (!value) return false;
  const auto read = lax_boolean(*value);
  if (!read) refuse_field(name, "Input should be a valid boolean");
  return *read;
}

void check_number(const Json& object, const char* name, double least, double most) {
  const Json* value = member(object, name);
  if (!value) return;
  if (!value->is_number()) refuse_field(name, "Input should be a valid number");
  const double number = value->get<double>();
  if (number < least || number > most) refuse(std::string(name) + " is out of range.", name);
}

void read_model(const Json& body, const MockConfig& config, ApiRequest& out) {
  const Json* model = member(body, "model");
  if (!model) {
    out.model = config.models.front();
    return;
  }
  if (!model->is_string()) refuse_field("model", "Input should be a valid string");
  out.model = model->get<std::string>();
  if (std::find(config.models.begin(), config.models.end(), out.model) == config.models.end()) {
    refuse("The model `" + out.model + "` does not exist.", "model", 404);
  }
}

void read_stream(const Json& body, ApiRequest& out) {
  out.stream = boolean(body, "stream");
  const Json* options = member(body, "stream_options");
  if (!options) return;
  if (!options->is_object()) refuse_field("stream_options", "Input should be a valid dictionary");
  if (!out.stream) refuse("Stream options can only be defined when `stream=True`.", "stream_options");
  out.include_usage = boolean(*options, "include_usage");
  out.usage_in_each_chunk = boolean(*options, "continuous_usage_stats");
}

void read_stop(const Json& from, const char* name, ApiRequest& out) {
  const Json* stop = member(from, name);
  if (!stop) return;
  if (stop->is_string()) {
    out.stop.push_back(stop->get<std::string>());
  } else if (stop->is_array()) {
    for (const Json& one : *stop) {
      if (!one.is_string()) refuse_field(name, "Input should be a valid string");
      out.stop.push_back(one.get<std::string>());
    }
  } else {
    refuse_field(name, "Input should be a valid string or list");
  }
  std::erase(out.stop, std::string());
}

// Limits and the like; `from` is the body, or sampling_params of the token endpoint.
void read_sampling(const Json& from, const MockConfig& config, ApiRequest& out) {
  std::optional<std::int64_t> limit;
  if (out.api == Api::kResponses) {
    limit = integer(from, "max_output_tokens", 1);
  } else {
    const auto plain = integer(from, "max_tokens", 1);
    if (out.api == Api::kChat) limit = integer(from, "max_completion_tokens", 1);
    if (!limit) limit = plain;
  }
  if (out.api == Api::kMessages && !limit) refuse_field("max_tokens", "Field required");
  out.limit_given = limit.has_value() || out.api == Api::kCompletions;
  out.limit = limit.value_or(config.default_max_tokens);
  out.min_tokens = integer(from, "min_tokens", 0).value_or(0);
  if (limit && out.min_tokens > out.limit) {
    refuse("min_tokens must be less than or equal to max_tokens=" + std::to_string(out.limit) + ", got " +
           std::to_string(out.min_tokens) + ".");
  }
  out.limit = std::max(out.limit, out.min_tokens);
  if (out.api != Api::kResponses && out.api != Api::kMessages) out.n = integer(from, "n", 1, 128).value_or(1);
  out.ignore_eos = boolean(from, "ignore_eos");
  out.keep_stop_text = boolean(from, "include_stop_str_in_output");
  check_number(from, "temperature", 0.0, 1e9);
  check_number(from, "top_p", 0.0, 1.0);
  check_number(from, "presence_penalty", -2.0, 2.0);
  check_number(from, "frequency_penalty", -2.0, 2.0);
  read_stop(from, out.api == Api::kMessages ? "stop_sequences" : "stop", out);
}

void read_logprobs(const Json& body, ApiRequest& out) {
  if (out.api == Api::kCompletions) {
    out.logprobs = integer(body, "logprobs", 0, 20);
  } else if (out.api == Api::kChat) {
    const auto top = integer(body, "top_logprobs", 0, 20);
    const bool wanted = boolean(body, "logprobs");
    if (top && *top > 0 && !wanted)
      refuse("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs");
    if (wanted) out.logprobs = top.value_or(0);
  }
}

void read_tools(const Json& body, ApiRequest& out) {
  const Json* tools = member(body, "tools");
  const Json* choice = member(body, "tool_choice");
  if (tools && !tools->is_array()) refuse_field("tools", "Input should be a valid list");
  if (!choice || *choice == "none" || *choice == "auto") return;
  if (!tools || tools->empty()) refuse("When using `tool_choice`, `tools` must be set.", "tool_choice");
  const auto name_of = [](const Json& tool) -> std::optional<std::string> {
    if (!tool.is_object()) return std::nullopt;
    const Json* inner = member(tool, "function");
    const Json& holder = inner && inner->is_object() ? *inner : tool;
    const Json* name = member(holder, "name");
    return name && name->is_string() ? std::optional(name->get<std::string>()) : std::nullopt;
  };
  std::optional<std::string> wanted;
  if (choice->is_object()) wanted = name_of(*choice);
  for (const Json& tool : *tools) {
    const auto name = name_of(tool);
    if (name && (!wanted || *wanted == *name)) {
      out.forced_tool = name;
      return;
    }
  }
  refuse("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice");
}

void read_kv_params(const Json& body, const MockConfig& config, ApiRequest& out) {
  const Json* top = member(body, "kv_transfer_params");
  if (top && !top->is_object()) refuse_field("kv_transfer_params", "Input should be a valid dictionary");
  out.kv_params = effective_kv_params(out.api, body, config);
  if (config.role == Role::kNone) return;
  out.leg = leg_of(Json{{"kv_transfer_params", out.kv_params}}, config);
}

// Of engines with a store that P/D reads; others ignore the member.
void read_cache_hit_threshold(const Json& body, const MockConfig& config, ApiRequest& out) {
  if (config.vllm.connector != KvConnectorKind::kSharedStorage) return;
  if (out.api != Api::kChat && out.api != Api::kCompletions) return;
  const Json* value = member(body, "cache_hit_threshold");
  if (!value) return;
  const double threshold = value->is_number() ? value->get<double>() : -1;
  if (threshold < 0 || threshold > 1)
    refuse_field("cache_hit_threshold", "Input should be a number from 0 to 1");
  out.cache_hit_threshold = threshold;
}

Tokens token_list(const Json& list, const char* name) {
  Tokens tokens;
  for (const Json& token : list) {
    if (!token.is_number_integer()) refuse_field(name, "Input should be a valid integer");
    tokens.push_back(token.get<std::int64_t>());
  }
  if (tokens.empty()) refuse("Either prompt or prompt_embeds must be provided and non-empty.", name);
  return tokens;
}

void read_completion_prompts(const Json& body, ApiRequest& out) {
  const Json* prompt = member(body, "prompt");
  if (!prompt) refuse("Either prompt or prompt_embeds must be provided and non-empty.", "prompt");
  if (prompt->is_string()) {
    out.prompts.push_back(encode(prompt->get<std::string>()));
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    out.prompts.push_back(token_list(*prompt, "prompt"));
  } else if (prompt->is_array() && !prompt->empty()) {
    for (const Json& one : *prompt) {
      if (one.is_string()) {
        out.prompts.push_back(encode(one.get<std::string>()));
      } else if (one.is_array()) {
        out.prompts.push_back(token_list(one, "prompt"));
      } else {
        refuse_field("prompt", "Input should be a valid string");
      }
    }
  } else {
    refuse_field("prompt", "Input should be a valid string");
  }
}

void read_prompts(const Json& body, ApiRequest& out) {
  if (out.api == Api::kCompletions) {
    read_completion_prompts(body, out);
  } else if (out.api == Api::kGenerate) {
    const Json* ids = member(body, "token_ids");
    if (!ids || !ids->is_array()) refuse_field("token_ids", "Field required");
    out.prompts.push_back(token_list(*ids, "token_ids"));
  } else {
    const auto text = out.api == Api::kResponses  ? responses_prompt_text(body)
                      : out.api == Api::kMessages ? messages_prompt_text(body)
                                                  : checked_chat_prompt_text(body);
    if (!text.error.empty()) refuse_field(text.field, text.error);
    const Json* ids = out.kv_params.is_object() ? member(out.kv_params, "prompt_token_ids") : nullptr;
    if (out.api == Api::kChat && ids && ids->is_array() && !ids->empty()) {
      out.prompts.push_back(token_list(*ids, "prompt_token_ids"));
    } else {
      out.prompts.push_back(encode(text.text));
    }
  }
  for (const Tokens& prompt : out.prompts) {
    if (prompt.empty()) refuse("Either prompt or prompt_embeds must be provided and non-empty.", "prompt");
    out.prompt_texts.push_back(decode(prompt));
  }
}

// One answer of this many tokens is the most the mock is willing to hold in memory.
constexpr std::int64_t kMaxAnswerTokens = 4'000'000;

void check_context(const MockConfig& config, const ApiRequest& out) {
  const auto prompts = static_cast<std::int64_t>(out.prompts.size());
  if (prompts > kMaxAnswerTokens / (out.n * std::min(out.limit, kMaxAnswerTokens))) {
    refuse("The mock refuses to generate more than " + std::to_string(kMaxAnswerTokens) +
           " tokens for one request.");
  }
  const std::int64_t limit = config.context_limit();
  for (const Tokens& prompt : out.prompts) {
    const auto size = static_cast<std::int64_t>(prompt.size());
    const std::int64_t answer = out.limit_given ? out.limit : 1;
    if (size + answer <= limit) continue;
    refuse("This model's maximum context length is " + std::to_string(limit) +
               " tokens. However, you requested " + std::to_string(answer) +
               " output tokens and your prompt contains " + std::to_string(size) +
               " input tokens. Please reduce the length of the input prompt or the number of requested "
               "output tokens.",
           "input_tokens");
  }
}

ApiRequest parse_checked(Api api, const Json& body, const MockConfig& config) {
  ApiRequest out;
  out.api = api;
  if (!body.is_object()) refuse_field("body", "Input should be a valid dictionary");
  out.body = body;
  read_stream(body, out);
  const Json* sampling = &body;
  if (api == Api::kGenerate) {
    sampling = member(body, "sampling_params");
    if (!sampling || !sampling->is_object()) refuse_field("sampling_params", "Field required");
  }
  read_sampling(*sampling, config, out);
  read_logprobs(body, out);
  if (api == Api::kChat || api == Api::kMessages || api == Api::kResponses) read_tools(body, out);
  out.return_token_ids = boolean(body, "return_token_ids");
  if (api == Api::kCompletions) out.echo = boolean(body, "echo");
  read_kv_params(body, config, out);
  read_cache_hit_threshold(body, config, out);
  read_model(body, config, out);
  read_prompts(body, out);
  check_context(config, out);
  return out;
}

}  // namespace

const char* leg_name(Leg leg) {
  switch (leg) {
    case Leg::kPlain:
      return "plain";
    case Leg::kPrefill:
      return "prefill";
    case Leg::kDecode:
      return "decode";
  }
  return "plain";
}

std::string error_body(Api api, const ApiError& error) {
  const char* type = error.status == 404   ? "NotFoundError"
                     : error.status >= 500 ? "InternalServerError"
                                           : "BadRequestError";
  if (api == Api::kMessages) {
    const char* anthropic = error.status == 404   ? "not_found_error"
                            : error.status >= 500 ? "internal_error"
                                                  : "invalid_request_error";
    return dump(Reply{{"type", "error"}, {"error", {{"type", anthropic}, {"message", error.message}}}});
  }
  Reply inner;
  inner["message"] = error.message;
  inner["type"] = type;
  inner["param"] = Reply(error.param);
  inner["code"] = error.status;
  return dump(Reply{{"error", inner}});
}

std::int64_t ApiRequest::prompt_tokens() const {
  std::int64_t sum = 0;
  for (const Tokens& prompt : prompts) sum += static_cast<std::int64_t>(prompt.size());
  return sum;
}

std::optional<Json> parse_json(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) return std::nullopt;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

std::variant<ApiRequest, ApiError> parse_api_request(Api api, const Json& body, const MockConfig& config) {
  try {
    return parse_checked(api, body, config);
  } catch (const Refused& refused) {
    return refused.error;
  }
}

std::string chat_prompt_text(const Json& body) {
  return checked_chat_prompt_text(body).text;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}
std::string dump(const Reply& value) {
  return value.dump(-1, ' ', false, Reply::error_handler_t::replace);
}

}  // namespace handoff::mock
