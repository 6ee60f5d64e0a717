#include "trtllm_generation.hpp"
#include "tests/mock_engine/json_member.hpp"

#include <algorithm>
#include <ctime>
#include <functional>
#include <utility>

#include "reply_format.hpp"
#include "token_stream.hpp"

namespace handoff::mock {
namespace {

constexpr const char* kParams = "disaggregated_params";

std::optional<ApiError> take_token_ids(const Json& body, ApiRequest& request) {
  std::optional<Tokens> ids;
  if (const Json* list = member(body, "prompt_token_ids")) {
    if (!list->is_array()) return ApiError{400, "prompt_token_ids: Input should be a valid list", nullptr};
    ids.emplace();
    for (const Json& id : *list) {
      if (!id.is_number_integer())
        return ApiError{400, "prompt_token_ids: Input should be integers", nullptr};
      ids->push_back(id.get<std::int64_t>());
    }
  } else if (const Json* base64 = member(body, "prompt_token_ids_b64")) {
    if (base64->is_string()) ids = ids_of_base64(base64->get<std::string>());
    if (!ids) return ApiError{400, "prompt_token_ids_b64: not base64 of int32", nullptr};
  }
  if (!ids || ids->empty()) return std::nullopt;
  request.prompts = {*ids};
  request.prompt_texts = {decode(*ids)};
  return std::nullopt;
}

std::optional<ApiError> params_error(const TrtllmParams& params, const ApiRequest& request) {
  if (params.type == TrtllmParams::Type::kContextAndGeneration) return std::nullopt;
  if (request.n != 1 || request.prompts.size() != 1) {
    return ApiError{400, "Disaggregated serving takes one prompt and one choice", kParams};
  }
  if (params.type == TrtllmParams::Type::kGenerationOnly && !params.ctx_request_id) {
    return ApiError{400, "ctx_request_id is required for generation_only requests", kParams};
  }
  if (!params.disagg_request_id) return ApiError{400, "disagg_request_id is required", kParams};
  return std::nullopt;
}

Leg leg_of_type(TrtllmParams::Type type) {
  switch (type) {
    case TrtllmParams::Type::kContextOnly:
      return Leg::kPrefill;
    case TrtllmParams::Type::kGenerationOnly:
      return Leg::kDecode;
    case TrtllmParams::Type::kContextAndGeneration:
      return Leg::kPlain;
  }
  return Leg::kPlain;
}

void count_leg(Engine& engine, Leg leg) {
  Counters& counters = engine.counters();
  const Role role = engine.config().role;
  if (leg == Leg::kPlain) ++counters.plain_requests;
  if (leg == Leg::kPrefill) ++counters.prefill_requests;
  if (leg == Leg::kDecode) ++counters.decode_requests;
  if (leg == Leg::kPrefill && role == Role::kConsumer) ++counters.misrouted;
  if (leg == Leg::kDecode && role == Role::kProducer) ++counters.misrouted;
}

// One request on its way; lives in serve_trtllm_generation()'s frame.
struct Generation {
  Exchange& exchange;
  TrtllmState& state;
  const TrtllmRequest& parsed;
  TrtllmRun& run;
  std::string id;
  std::vector<Completion> answers;
  std::unique_ptr<ReplyFormat> format;
};

void make_reply(Generation& g) {
  const ApiRequest& request = g.parsed.request;
  g.answers = make_answers(request, g.run.answer_kind());
  // Generation replays the token that context made.
  if (request.leg == Leg::kDecode && g.parsed.params.first_token && !g.answers.front().tokens.empty() &&
      *g.parsed.params.first_token != g.answers.front().tokens.front()) {
    ++g.exchange.services.engine.counters().wrong_text;
    g.answers = make_answers(request, AnswerKind::kWrongKv);
  }
  Usage usage{request.prompt_tokens(), 0, g.run.cached_tokens()};
  for (const Completion& answer : g.answers) usage.completion_tokens += answer.token_count();
  g.format = make_reply_format({request, g.answers, g.id, std::time(nullptr), usage, nullptr});
}

// The faults that damage a handoff, and the reply's text.
std::string spell_reply(Reply reply, const FaultPlan& plan, Random& random) {
  Reply& choice = reply["choices"].front();
  if (plan.params_remove) choice.erase(kParams);
  if (plan.params_patch && plan.params_patch->is_null()) choice[kParams] = nullptr;
  if (plan.params_patch && plan.params_patch->is_object()) {
    // `$reply` reaches what stands beside the parameters.
    for (const auto& [name, value] : plan.params_patch->items()) {
      if (name == "$reply") {
        reply.merge_patch(Reply(value));
      } else if (name == "$choice") {
        reply["choices"].front().merge_patch(Reply(value));
      } else {
        Reply& params = reply["choices"].front()[kParams];
        params.merge_patch(Reply{{name, Reply(value)}});
      }
    }
  }
  if (!plan.params_raw) return dump(reply);
  const std::string placeholder = "raw-" + random.hex(24);
  reply["choices"].front()[kParams] = placeholder;
  std::string text = dump(reply);
  const std::string quoted = "\"" + placeholder + "\"";
  text.replace(text.find(quoted), quoted.size(), *plan.params_raw);
  return text;
}

Reply whole_reply(const Generation& g) {
  Reply reply = g.format->whole();
  // Members that only the other kind of engine has.
  for (const char* name : {"kv_transfer_params", "service_tier", "system_fingerprint"}) reply.erase(name);
  for (Reply& choice : reply["choices"]) {
    for (const char* name : {"prompt_logprobs", "prompt_token_ids"}) choice.erase(name);
    choice[kParams] = nullptr;
  }
  reply["prompt_token_ids"] = nullptr;
  if (g.parsed.request.api == Api::kChat) reply["prompt_token_ids_b64"] = nullptr;
  return reply;
}

// What context adds for generation. `ctx_id`: none when the request ended here.
Reply context_reply(const Generation& g, std::optional<std::int64_t> ctx_id) {
  Reply reply = whole_reply(g);
  const MockConfig& config = g.exchange.services.config;
  const Tokens& prompt = g.parsed.request.prompts.front();
  const bool base64 = config.prompt_ids_base64 || g.parsed.params.wants_base64;
  if (base64 && (g.parsed.request.api == Api::kChat || config.prompt_ids_base64)) {
    reply["prompt_token_ids_b64"] = base64_of_ids(prompt);
  } else {
    reply["prompt_token_ids"] = prompt;
  }
  reply["choices"].front()[kParams] =
      context_reply_params(g.exchange.services.engine, *g.parsed.params.disagg_request_id, ctx_id,
                           g.answers.front().tokens.front());
  return reply;
}

Awaitable<void> answer_trtllm_error(Exchange& exchange, ApiError error) {
  co_await sleep_for(exchange.plan.delay_after);
  co_await answer_json(exchange, error.status, trtllm_error_body(error));
}

ApiError failure_of(TrtllmResult result) {
  return result == TrtllmResult::kTimedOut
             ? ApiError{500, "Request timed out waiting for the KV cache", nullptr}
             : ApiError{500, "Internal server error", nullptr};
}

Awaitable<void> answer_failed(Generation& g, TrtllmResult result) {
  g.run.fail();
  ApiError error = failure_of(result);
  co_await answer_trtllm_error(g.exchange, std::move(error));
}

Awaitable<void> answer_whole(Generation& g) {
  const MockConfig& config = g.exchange.services.config;
  TrtllmResult result = co_await g.run.start();
  if (result != TrtllmResult::kReady) {
    co_await answer_failed(g, result);
    co_return;
  }
  make_reply(g);
  std::int64_t steps = 0;
  for (const Completion& answer : g.answers) steps = std::max(steps, answer.token_count());
  co_await sleep_for(config.decode_per_token * steps);
  co_await sleep_for(g.exchange.plan.delay_after);
  const bool is_context = g.parsed.request.leg == Leg::kPrefill;
  std::optional<std::int64_t> ctx_id;
  if (is_context && g.answers.front().finish_reason == "length") {
    ctx_id = g.run.keep_blocks();
    if (g.parsed.params.generation_first) {
      result = co_await g.run.wait_until_taken();
      if (result != TrtllmResult::kReady) {
        co_await answer_failed(g, result);
        co_return;
      }
    }
  }
  g.run.finish(g.answers);
  std::string body = spell_reply(is_context ? context_reply(g, ctx_id) : whole_reply(g), g.exchange.plan,
                                 g.exchange.services.engine.random());
  co_await g.exchange.writer.full(200, "application/json", {}, std::move(body));
}

std::string in_band_failure() {
  Reply error;
  error["message"] = "Internal server error";
  error["type"] = "server_error";
  error["code"] = nullptr;
  error["param"] = nullptr;
  return sse(Reply{{"error", error}});
}

// Streams have no parameters: blocks of a context request that is asked to stream wait for nobody.
Awaitable<void> answer_stream(Generation& g) {
  // The head goes out before the engine has anything, blocks of a handoff included.
  co_await sleep_for(g.exchange.plan.delay_after);
  co_await g.exchange.writer.begin_stream(200, "text/event-stream; charset=utf-8", {});
  const std::string done =
      g.exchange.services.config.double_done ? "data: [DONE]\n\ndata: [DONE]\n\n" : "data: [DONE]\n\n";
  const TrtllmResult result = co_await g.run.start();
  if (result != TrtllmResult::kReady) {
    g.run.fail();
    co_await g.exchange.writer.piece(in_band_failure() + done);
    co_await g.exchange.writer.end_stream();
    co_return;
  }
  make_reply(g);
  if (g.parsed.request.leg == Leg::kPrefill) g.run.keep_blocks();
  co_await g.exchange.writer.piece(g.format->start());
  const std::function<void(std::size_t)> nobody;
  co_await stream_tokens(g.exchange, g.answers, *g.format, nobody);
  g.run.finish(g.answers);
  std::string end = g.format->end();
  end.replace(end.rfind("data: [DONE]"), std::string::npos, done);
  co_await g.exchange.writer.piece(std::move(end));
  co_await g.exchange.writer.end_stream();
}

// What only counts once a request is accepted: ids, and whether the prompt came as tokens.
std::optional<ApiError> note_ids(TrtllmState& state, const TrtllmRequest& parsed) {
  const TrtllmParams& params = parsed.params;
  if (parsed.request.leg == Leg::kPlain) return std::nullopt;
  if (*params.disagg_request_id < kLeastGlobalId) {
    ++state.low_ids;
    return ApiError{400, "disagg_request_id is in the range of local ids", kParams};
  }
  if (!state.use_id(*params.disagg_request_id, parsed.request.leg)) {
    ++state.duplicate_ids;
    return ApiError{500, "disagg_request_id is in use", kParams};
  }
  if (parsed.request.leg == Leg::kDecode && !params.generation_first) {
    const Json& body = parsed.request.body;
    const Json* prompt = member(body, "prompt");
    const bool has_ids = member(body, "prompt_token_ids") || member(body, "prompt_token_ids_b64") ||
                         (prompt && prompt->is_array());
    if (!has_ids) ++state.tokenized_again;
  }
  return std::nullopt;
}

std::optional<ApiError> signature_error(const Exchange& exchange, TrtllmState& state,
                                        const TrtllmParams& params) {
  const std::string& key = exchange.services.config.auth_key;
  if (key.empty()) return std::nullopt;
  const std::string wanted = trtllm_signature(key, params);
  const std::string* given = exchange.header("x-trtllm-disagg-auth");
  if (wanted.empty() || (given && *given == wanted)) return std::nullopt;
  ++state.unsigned_requests;
  return ApiError{400, "Invalid internal disaggregated request authentication", nullptr};
}

std::optional<ApiError> refusal(Exchange& exchange, TrtllmState& state, const TrtllmRequest& parsed) {
  const MockConfig& config = exchange.services.config;
  if (exchange.plan.reject) return ApiError{*exchange.plan.reject, "rejected by a fault rule", nullptr};
  if (auto error = signature_error(exchange, state, parsed.params)) return error;
  std::int64_t blocks = 0;
  for (const Tokens& prompt : parsed.request.prompts) {
    const auto tokens = static_cast<std::int64_t>(prompt.size()) + parsed.request.limit;
    blocks += parsed.request.n * ((tokens + config.block_size - 1) / config.block_size);
  }
  if (blocks > config.blocks)
    return ApiError{400, "The request needs more KV blocks than the mock has", nullptr};
  return note_ids(state, parsed);
}

}  // namespace

std::string trtllm_error_body(const ApiError& error) {
  Reply out;
  out["object"] = "error";
  out["message"] = error.message;
  out["type"] = error.status == 404   ? "NotFoundError"
                : error.status >= 500 ? "InternalServerError"
                                      : "BadRequestError";
  out["param"] = nullptr;
  out["code"] = error.status;
  return dump(out);
}

std::variant<TrtllmRequest, ApiError> parse_trtllm_request(Api api, const Json& body,
                                                           const MockConfig& config) {
  auto parsed = parse_api_request(api, body, config);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  TrtllmRequest out{std::get<ApiRequest>(std::move(parsed)), {}};
  ApiRequest& request = out.request;
  request.leg = Leg::kPlain;
  request.kv_params = nullptr;
  if (api == Api::kChat) {
    if (auto error = take_token_ids(body, request)) return *error;
  }
  if (!member(body, kParams) || config.role == Role::kNone) return out;
  auto params = parse_trtllm_params(body);
  if (const ApiError* error = std::get_if<ApiError>(&params)) return *error;
  out.params = std::get<TrtllmParams>(std::move(params));
  if (auto error = params_error(out.params, request)) return *error;
  request.leg = leg_of_type(out.params.type);
  if (request.leg == Leg::kPrefill) {  // the phase makes one token, whatever the limits are
    request.limit = 1;
    request.limit_given = true;
  }
  return out;
}

Awaitable<void> serve_trtllm_generation(Exchange& exchange, TrtllmState& state, Api api) {
  Engine& engine = exchange.services.engine;
  const std::string* msgpack = exchange.header("x-trtllm-msgpack");
  const std::optional<Json> body = msgpack ? std::nullopt : parse_json(exchange.request.body);
  co_await sleep_for(exchange.plan.delay_before);
  if (!body) {
    ++engine.counters().rejected;
    ApiError unreadable{400, "The body can't be read", nullptr};
    co_await answer_trtllm_error(exchange, std::move(unreadable));
    co_return;
  }
  auto parsed = parse_trtllm_request(api, *body, exchange.services.config);
  std::optional<ApiError> error;
  if (ApiError* bad = std::get_if<ApiError>(&parsed)) {
    error = *bad;
  } else {
    error = refusal(exchange, state, std::get<TrtllmRequest>(parsed));
  }
  if (error) {
    ++engine.counters().rejected;
    co_await answer_trtllm_error(exchange, std::move(*error));
    co_return;
  }
  if (engine.dead()) {
    ++engine.counters().errored;
    ApiError dead = engine_dead_error();
    co_await answer_trtllm_error(exchange, std::move(dead));
    co_return;
  }
  const TrtllmRequest& request = std::get<TrtllmRequest>(parsed);
  count_leg(engine, request.request.leg);
  TrtllmRun run(engine, state, request.request, request.params);
  Generation generation{exchange, state, request, run, engine.random().hex(32), {}, nullptr};
  if (request.request.stream) {
    co_await answer_stream(generation);
  } else {
    co_await answer_whole(generation);
  }
}

}  // namespace handoff::mock
