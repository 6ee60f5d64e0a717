// /generate, /v1/chat/completions, /v1/completions of an SGLang engine.
#include <algorithm>
#include <ctime>
#include <utility>

#include "sglang_reply.hpp"
#include "sglang_routes.hpp"

namespace handoff::mock {
namespace {

using Tasks = std::vector<std::shared_ptr<SglangTask>>;

// The header wins over the body; anything that is no number is refused.
std::optional<ApiError> read_rank_header(const Exchange& exchange, SglangRequest& request) {
  const std::string* text = exchange.header("x-data-parallel-rank");
  if (!text) return std::nullopt;
  if (text->empty() || text->size() > 9 || text->find_first_not_of("0123456789") != std::string::npos)
    return ApiError{400, "Invalid X-Data-Parallel-Rank header", nullptr};
  request.routed_rank = std::stoll(*text);
  return std::nullopt;
}

std::optional<ApiError> refusal(const Exchange& exchange, SglangScheduler& scheduler,
                                SglangRequest& request) {
  if (exchange.plan.reject) return ApiError{*exchange.plan.reject, "rejected by a fault rule", nullptr};
  if (auto error = read_rank_header(exchange, request)) return error;
  const MockConfig& config = exchange.services.config;
  if (request.routed_rank && (*request.routed_rank < 0 || *request.routed_rank >= config.data_parallel_size))
    return ApiError{400, "routed_dp_rank is out of range", nullptr};
  std::int64_t blocks = 0;
  for (const SglangItem& item : request.items) {
    const std::int64_t tokens = item.request.prompt_tokens() + item.request.limit;
    blocks += (tokens + config.block_size - 1) / config.block_size;
  }
  if (blocks > config.blocks) return ApiError{400, "The request needs more KV than the mock has", nullptr};
  if (scheduler.queue_full()) return ApiError{503, "The request queue is full.", nullptr};
  return std::nullopt;
}

std::int64_t rank_of(const MockConfig& config, const SglangRequest& request, const SglangItem& item) {
  if (request.routed_rank) return *request.routed_rank;
  if (!item.room) return 0;
  return static_cast<std::int64_t>(*item.room % static_cast<std::uint64_t>(config.data_parallel_size));
}

// A prefill engine makes one token, whatever was asked for.
void cap_for_prefill(SglangRequest& request) {
  const auto cap = [](ApiRequest& one) {
    one.limit = 1;
    one.limit_given = true;
    one.min_tokens = 0;
  };
  cap(request.whole);
  for (SglangItem& item : request.items) cap(item.request);
}

void count_leg(Engine& engine, Leg leg) {
  Counters& counters = engine.counters();
  ++(leg == Leg::kPrefill  ? counters.prefill_requests
     : leg == Leg::kDecode ? counters.decode_requests
                           : counters.plain_requests);
}

Tasks make_tasks(const Exchange& exchange, const SglangRequest& request) {
  Tasks tasks;
  for (const SglangItem& item : request.items) {
    auto task = std::make_shared<SglangTask>();
    task->item = item;
    task->rank = rank_of(exchange.services.config, request, item);
    task->prefill_rank = request.prefill_rank;
    if (exchange.plan.engine_error) {
      task->told_to_fail =
          SglangFailure{exchange.plan.engine_error->status, exchange.plan.engine_error->message,
                        "PD_TRANSFER_FAILED", exchange.plan.engine_error->retryable};
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

std::vector<Completion> answers_of(const SglangRequest& request, const Tasks& tasks) {
  std::vector<Completion> out;
  for (const auto& task : tasks) {
    Completion answer = make_answers(request.whole, task->kind)[task->item.answer];
    out.push_back(std::move(answer));
  }
  return out;
}

HeaderList error_headers(const MockConfig& config, const SglangFailure& failure) {
  if (!config.sglang.typed_errors) return {};
  return {{"x-sglang-pd-reason", failure.reason},
          {"x-sglang-retryable", failure.retryable ? "true" : "false"}};
}

const SglangFailure* first_failure(const Tasks& tasks, std::size_t& at) {
  for (at = 0; at < tasks.size(); ++at) {
    if (tasks[at]->failure) return &*tasks[at]->failure;
  }
  return nullptr;
}

// Tells the scheduler when the HTTP side goes away: the peer left, or a fault closed the connection.
struct Connection {
  SglangScheduler& scheduler;
  const Tasks& tasks;
  bool stream;
  bool done = false;
  ~Connection() {
    if (done) return;
    // Plain handlers poll every 4 s, and may just have done so; streams are aborted 2 s after their generator
    // ends.
    const auto after = scheduler.engine().config().scaled(stream ? 2.0 : 6.0);
    for (const auto& task : tasks) scheduler.disconnected(task, after);
  }
};

Awaitable<void> wait_for(Engine& engine, const Tasks& tasks, bool first_token) {
  const auto waiting = [&](const auto& task) { return !task->over && !(first_token && task->first_token); };
  while (std::any_of(tasks.begin(), tasks.end(), waiting))
    co_await engine.changed().wait_until(Clock::now() + kForEver);
}

Awaitable<void> answer_whole(Exchange& exchange, SglangScheduler& scheduler, const SglangRequest& request,
                             const Tasks& tasks) {
  const MockConfig& config = exchange.services.config;
  co_await wait_for(scheduler.engine(), tasks, false);
  co_await sleep_for(exchange.plan.delay_after);
  std::size_t at = 0;
  const SglangFailure* failure = first_failure(tasks, at);
  if (failure && failure->status != 0) {
    co_await exchange.writer.full(failure->status, "application/json", error_headers(config, *failure),
                                  sglang_error_body(request.api, failure->status, failure->message));
    co_return;
  }
  const SglangAnswer answer{request,
                            tasks,
                            answers_of(request, tasks),
                            std::time(nullptr),
                            config.sglang.mode != SglangMode::kDecode,
                            false,
                            config.sglang.cache_report};
  co_await answer_json(exchange, 200, sglang_whole(answer));
}

Awaitable<void> stream_answer(Exchange& exchange, const SglangAnswer& answer) {
  const auto step = exchange.services.config.decode_per_token;
  std::size_t steps = 0;
  for (const Completion& done : answer.answers) steps = std::max(steps, done.tokens.size());
  for (std::size_t position = 0; position < steps; ++position) {
    co_await sleep_for(step);
    std::string events;
    bool aborted = false;
    for (std::size_t at = 0; at < answer.tasks.size(); ++at) {
      if (answer.tasks[at]->failure) {
        aborted = true;
        events += sglang_aborted(answer, at, position);
      } else if (position < answer.answers[at].tokens.size()) {
        events += sglang_token(answer, at, position);
      }
    }
    co_await exchange.writer.piece(std::move(events));
    if (aborted) break;
  }
  co_await exchange.writer.piece(sglang_stream_end(answer));
  co_await exchange.writer.end_stream();
}

Awaitable<void> answer_stream(Exchange& exchange, SglangScheduler& scheduler, const SglangRequest& request,
                              const Tasks& tasks) {
  const MockConfig& config = exchange.services.config;
  // The head comes with the first output, so a failure in the scheduler comes as a 200.
  co_await wait_for(scheduler.engine(), tasks, true);
  co_await sleep_for(exchange.plan.delay_after);
  co_await exchange.writer.begin_stream(200, "text/event-stream; charset=utf-8", {});
  const SglangAnswer answer{request,
                            tasks,
                            answers_of(request, tasks),
                            std::time(nullptr),
                            config.sglang.mode != SglangMode::kDecode,
                            config.sglang.incremental_streaming,
                            config.sglang.cache_report};
  std::size_t at = 0;
  if (const SglangFailure* failure = first_failure(tasks, at)) {
    co_await exchange.writer.piece(sglang_error_events(answer, at, *failure));
    co_await exchange.writer.end_stream();
    co_return;
  }
  co_await stream_answer(exchange, answer);
}

Awaitable<void> refuse(Exchange& exchange, SglangApi api, bool stream, ApiError error) {
  ++exchange.services.engine.counters().rejected;
  co_await sleep_for(exchange.plan.delay_after);
  // A stream of /generate has its 200 before anything is looked at; a full queue is the scheduler's finding.
  if (stream && (api == SglangApi::kGenerate || error.status == 503)) {
    co_await exchange.writer.begin_stream(200, "text/event-stream; charset=utf-8", {});
    co_await exchange.writer.piece(sglang_refused_events(error));
    co_await exchange.writer.end_stream();
    co_return;
  }
  co_await answer_json(exchange, error.status, sglang_error_body(api, error.status, error.message));
}

ApiError not_json() {
  return {400, "The request body is not valid JSON.", nullptr};
}

bool wants_stream(const Json& body) {
  return body.is_object() && body.contains("stream") && body.at("stream") == true;
}

}  // namespace

Awaitable<void> serve_sglang_generation(Exchange& exchange, SglangScheduler& scheduler, SglangApi api) {
  Engine& engine = scheduler.engine();
  const std::optional<Json> body = parse_json(exchange.request.body);
  if (!body) {
    ApiError error = not_json();
    co_await refuse(exchange, api, false, std::move(error));
    co_return;
  }
  co_await sleep_for(exchange.plan.delay_before);
  auto parsed = parse_sglang_request(api, *body, exchange.services.config, engine.random());
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    co_await refuse(exchange, api, wants_stream(*body), *error);
    co_return;
  }
  SglangRequest& request = std::get<SglangRequest>(parsed);
  request.whole.body = *body;
  if (auto error = refusal(exchange, scheduler, request)) {
    co_await refuse(exchange, api, request.whole.stream, std::move(*error));
    co_return;
  }
  if (engine.dead()) {
    ++engine.counters().errored;
    co_await answer_json(exchange, 500, sglang_error_body(SglangApi::kChat, 500, "The scheduler has died."));
    co_return;
  }
  if (exchange.services.config.sglang.mode == SglangMode::kPrefill) cap_for_prefill(request);
  count_leg(engine, exchange.request.leg);
  const Tasks tasks = make_tasks(exchange, request);
  for (const auto& task : tasks) scheduler.admit(task);
  Connection connection{scheduler, tasks, request.whole.stream};
  if (request.whole.stream) {
    co_await answer_stream(exchange, scheduler, request, tasks);
  } else {
    co_await answer_whole(exchange, scheduler, request, tasks);
  }
  connection.done = true;
}

}  // namespace handoff::mock
