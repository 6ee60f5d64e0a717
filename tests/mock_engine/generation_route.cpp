// The five endpoints that make the engine generate.
#include <algorithm>
#include <charconv>
#include <ctime>
#include <functional>
#include <utility>

#include "engine_run.hpp"
#include "exchange.hpp"
#include "kv_connector.hpp"
#include "reply_format.hpp"
#include "token_stream.hpp"

namespace handoff::mock {
namespace {

const ApiError kInternalError{500, "Internal server error", nullptr};

// The rank asked for; -1 when it is out of range. Anything that is no integer is ignored.
std::int64_t data_parallel_rank(const Exchange& exchange) {
  const std::string* text = exchange.header("x-data-parallel-rank");
  if (!text) return 0;
  std::int64_t rank = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), rank);
  if (error != std::errc() || end != text->data() + text->size()) return 0;
  return rank >= 0 && rank < exchange.services.config.data_parallel_size ? rank : -1;
}

// Applies the params_* faults; returns the body's text.
std::string spell_reply(Reply reply, const FaultPlan& plan, Random& random) {
  if (plan.params_remove) reply.erase("kv_transfer_params");
  if (plan.params_patch) {
    // merge_patch would rather drop a member than make it null.
    if (plan.params_patch->is_null()) {
      reply["kv_transfer_params"] = nullptr;
    } else {
      Reply params = reply.contains("kv_transfer_params") ? reply["kv_transfer_params"] : Reply(nullptr);
      params.merge_patch(Reply(*plan.params_patch));
      reply["kv_transfer_params"] = params;
    }
  }
  if (!plan.params_raw) return dump(reply);
  const std::string placeholder = "raw-" + random.hex(24);
  reply["kv_transfer_params"] = placeholder;
  std::string text = dump(reply);
  const std::string quoted = "\"" + placeholder + "\"";
  text.replace(text.find(quoted), quoted.size(), *plan.params_raw);
  return text;
}

void count_leg(Engine& engine, Leg leg) {
  Counters& counters = engine.counters();
  const Role role = engine.config().role;
  switch (leg) {
    case Leg::kPlain:
      ++counters.plain_requests;
      break;
    case Leg::kPrefill:
      ++counters.prefill_requests;
      if (role == Role::kConsumer) ++counters.misrouted;
      break;
    case Leg::kDecode:
      ++counters.decode_requests;
      if (role == Role::kProducer) ++counters.misrouted;
      break;
  }
}

std::string id_prefix(Api api) {
  switch (api) {
    case Api::kCompletions:
      return "cmpl-";
    case Api::kChat:
      return "chatcmpl-";
    case Api::kResponses:
      return "resp_";
    case Api::kMessages:
      return "chatcmpl-";
    case Api::kGenerate:
      return "generate-tokens-";
  }
  return "cmpl-";
}

// One request on its way through the engine; lives in serve_generation()'s frame.
struct Generation {
  Exchange& exchange;
  const ApiRequest& request;
  EngineRun& run;
  std::string id;
  HeaderList headers;
  std::vector<Completion> answers;
  std::unique_ptr<ReplyFormat> format;
};

void make_reply(Generation& g) {
  AnswerKind kind = g.run.answer_kind();
  if (kind == AnswerKind::kRight && g.request.leg == Leg::kPrefill) kind = AnswerKind::kPrefill;
  g.answers = make_answers(g.request, kind);
  Usage usage{g.request.prompt_tokens(), 0, g.run.cached_tokens()};
  for (const Completion& answer : g.answers) usage.completion_tokens += answer.token_count();
  g.format = make_reply_format({g.request, g.answers, g.id, std::time(nullptr), usage, nullptr});
}

// The request's own threshold ended it: no token, and a reason of its own.
void give_up(Generation& g) {
  for (Completion& answer : g.answers)
    answer = Completion{answer.index, answer.prompt, {}, {}, {}, "cache_threshold", nullptr};
}

Awaitable<void> answer_whole(Generation& g) {
  const MockConfig& config = g.exchange.services.config;
  const LoadResult result = co_await g.run.start();
  if (result != LoadResult::kReady && result != LoadResult::kTooLittleCached) {
    g.run.fail();
    if (g.request.api == Api::kGenerate && result == LoadResult::kFailed) {
      // This endpoint does not turn the internal finish reason into a status.
      make_reply(g);
      for (Completion& answer : g.answers)
        answer = Completion{answer.index, answer.prompt, {}, {}, {}, "error", nullptr};
      co_await g.exchange.writer.full(200, "application/json", g.headers, dump(g.format->whole()));
      co_return;
    }
    co_await answer_error(g.exchange, g.request.api, kInternalError);
    co_return;
  }
  make_reply(g);
  if (result == LoadResult::kTooLittleCached) give_up(g);
  std::int64_t steps = 0;
  for (const Completion& answer : g.answers) steps = std::max(steps, answer.token_count());
  co_await sleep_for(config.decode_per_token * steps);
  if (g.exchange.services.engine.dead()) {
    g.run.fail();
    co_await answer_error(g.exchange, g.request.api, kInternalError);
    co_return;
  }
  g.format->set_kv_params(g.run.finish(g.answers));
  co_await sleep_for(g.exchange.plan.delay_after);
  std::string body = spell_reply(g.format->whole(), g.exchange.plan, g.exchange.services.engine.random());
  co_await g.exchange.writer.full(200, "application/json", g.headers, std::move(body));
}

Awaitable<void> answer_stream(Generation& g) {
  // The head goes out before anything is loaded or computed: a failed KV load cannot be seen in the status.
  co_await sleep_for(g.exchange.plan.delay_after);
  co_await g.exchange.writer.begin_stream(200, "text/event-stream; charset=utf-8", g.headers);
  const LoadResult result = co_await g.run.start();
  make_reply(g);
  if (result == LoadResult::kTooLittleCached) {
    give_up(g);
  } else if (result != LoadResult::kReady) {
    g.run.fail();
    co_await g.exchange.writer.piece(g.format->failure(kInternalError));
    co_await g.exchange.writer.end_stream();
    co_return;
  }
  co_await g.exchange.writer.piece(g.format->start());
  const std::function<void(std::size_t)> on_token = [&g](std::size_t generated) {
    g.run.advance(g.answers, generated);
  };
  co_await stream_tokens(g.exchange, g.answers, *g.format, on_token);
  g.format->set_kv_params(g.run.finish(g.answers));
  co_await g.exchange.writer.piece(g.format->end());
  co_await g.exchange.writer.end_stream();
}

Awaitable<void> reject(Exchange& exchange, KvConnector& connector, Api api, const Json& body,
                       ApiError error) {
  ++exchange.services.engine.counters().rejected;
  connector.rejected(api, body);
  co_await answer_error(exchange, api, std::move(error));
}

// Why this request cannot run although it is well formed.
std::optional<ApiError> refusal(const Exchange& exchange, const ApiRequest& request, std::int64_t rank) {
  const MockConfig& config = exchange.services.config;
  if (exchange.plan.reject) return ApiError{*exchange.plan.reject, "rejected by a fault rule", nullptr};
  if (rank < 0) return ApiError{400, "data_parallel_rank is out of range", "data_parallel_rank"};
  std::int64_t blocks = 0;
  for (const Tokens& prompt : request.prompts) {
    const auto tokens = static_cast<std::int64_t>(prompt.size()) + request.limit;
    blocks += request.n * ((tokens + config.block_size - 1) / config.block_size);
  }
  if (blocks > config.blocks)
    return ApiError{400, "The request needs more KV blocks than the mock has", nullptr};
  return std::nullopt;
}

}  // namespace

ApiError engine_dead_error() {
  return {500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", nullptr};
}

Awaitable<void> serve_generation(Exchange& exchange, Api api, KvConnector& connector) {
  Engine& engine = exchange.services.engine;
  const std::optional<Json> body = co_await read_json_body(exchange, api);
  if (!body) co_return;
  // A client that leaves before the scheduler has seen its decode request still frees P.
  struct UnseenRelease {
    KvConnector& connector;
    Api api;
    const Json* body;
    ~UnseenRelease() {
      if (body) connector.rejected(api, *body);
    }
  } unseen{connector, api, &*body};
  co_await sleep_for(exchange.plan.delay_before);
  unseen.body = nullptr;

  auto parsed = parse_api_request(api, *body, exchange.services.config);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    co_await reject(exchange, connector, api, *body, *error);
    co_return;
  }
  const ApiRequest& request = std::get<ApiRequest>(parsed);
  const std::int64_t rank = data_parallel_rank(exchange);
  if (auto error = refusal(exchange, request, rank)) {
    co_await reject(exchange, connector, api, *body, std::move(*error));
    co_return;
  }
  if (engine.dead()) {
    ++engine.counters().errored;
    co_await answer_error(exchange, api, engine_dead_error());
    co_return;
  }
  count_leg(engine, request.leg);
  const std::string* request_id = exchange.header("x-request-id");
  const std::string id = request_id && !request_id->empty() ? *request_id : engine.random().hex(32);
  HeaderList headers;
  if (exchange.services.config.request_id_headers) headers.emplace_back("x-request-id", id);
  EngineRun run(engine, connector, request, id_prefix(api) + id, rank);
  Generation generation{exchange, request, run, id, std::move(headers), {}, nullptr};
  if (request.stream) {
    co_await answer_stream(generation);
  } else {
    co_await answer_whole(generation);
  }
}

}  // namespace handoff::mock
