#include "sglang_routes.hpp"

#include <map>

#include "sglang_reply.hpp"

namespace handoff::mock {
namespace {

const std::map<std::string, std::string>& methods() {
  static const std::map<std::string, std::string> table{
      {"/generate", "POST PUT"},    {"/v1/chat/completions", "POST"},
      {"/v1/completions", "POST"},  {"/v1/responses", "POST"},
      {"/v1/messages", "POST"},     {"/abort_request", "POST"},
      {"/server_info", "GET"},      {"/get_server_info", "GET"},
      {"/health", "GET"},           {"/health_generate", "GET"},
      {"/ping", "GET POST"},        {"/v1/models", "GET"},
      {"/model_info", "GET"},       {"/get_model_info", "GET"},
      {"/tokenize", "POST"},        {"/v1/tokenize", "POST"},
      {"/detokenize", "POST"},      {"/v1/detokenize", "POST"},
      {"/flush_cache", "GET POST"},
  };
  return table;
}

constexpr const char* kFlushed = "Cache flushed.\n";
constexpr const char* kNotFlushed = "The cache is not flushed while requests run or wait.\n";

bool is_open(const std::string& path) {
  return path == "/health" || path == "/health_generate" || path == "/ping" || path == "/v1/models";
}

bool authorized(const Exchange& exchange) {
  const std::string& key = exchange.services.config.api_key;
  if (key.empty() || is_open(exchange.path)) return true;
  const std::string* value = exchange.header("authorization");
  return value && *value == "Bearer " + key;
}

// Null: this engine publishes none, as D, which has no prefix cache.
Reply kv_events_of(const Engine& engine) {
  const MockConfig& config = engine.config();
  if (engine.kv_events() == nullptr || config.sglang.mode == SglangMode::kDecode) return nullptr;
  Reply out;
  out["publisher"] = "zmq";
  out["endpoint_host"] = "*";
  out["endpoint_port_base"] = engine.kv_events()->port();
  out["topic"] = config.kv_topic;
  out["block_size"] = config.block_size;
  out["dp_size"] = config.data_parallel_size;
  return out;
}

std::string server_info_text(const Engine& engine, std::int64_t bootstrap_port) {
  const MockConfig& config = engine.config();
  Reply out;
  out["model_path"] = config.models.front();
  out["served_model_name"] = config.models.front();
  out["host"] = config.bind;
  out["port"] = config.port;
  out["tp_size"] = 1;
  out["dp_size"] = config.data_parallel_size;
  out["page_size"] = config.block_size;
  out["disaggregation_mode"] = sglang_mode_name(config.sglang.mode);
  out["disaggregation_bootstrap_port"] = bootstrap_port;
  out["disaggregation_transfer_backend"] = "mooncake";
  out["max_total_num_tokens"] = config.blocks * config.block_size;
  out["internal_states"] = Reply::array({Reply{{"last_gen_throughput", 0.0}}});
  out["version"] = config.sglang.version;
  out["kv_events"] = kv_events_of(engine);
  return dump(out);
}

std::string model_info_text(const MockConfig& config) {
  Reply out;
  out["model_path"] = config.models.front();
  out["tokenizer_path"] = config.models.front();
  out["is_generation"] = true;
  out["weight_version"] = "default";
  return dump(out);
}

// Runs a one-token generation, so it takes a second even when all is well.
Awaitable<void> answer_health(Exchange& exchange, SglangScheduler& scheduler) {
  Engine& engine = scheduler.engine();
  ++scheduler.counters().health_generations;
  co_await sleep_for(exchange.services.config.scaled(1.0));
  co_await exchange.writer.full(engine.dead() ? 503 : 200, "", {}, "");
}

Awaitable<void> answer_abort(Exchange& exchange, SglangScheduler& scheduler) {
  const auto body = parse_json(exchange.request.body);
  const bool good = body && body->is_object();
  if (!good || (body->contains("rid") && !body->at("rid").is_string())) {
    co_await answer_json(exchange, 400,
                         sglang_error_body(SglangApi::kChat, 400, "rid should be a valid string"));
    co_return;
  }
  co_await sleep_for(exchange.plan.delay_before);
  scheduler.abort(body->value("rid", std::string()), body->value("abort_all", false));
  co_await exchange.writer.full(200, "", {}, "");
}

// Bodies are built in plain functions: GCC 12 cannot keep initializer lists in a coroutine frame.
std::string no_room_text(bool anthropic) {
  const ApiError error{400, "Invalid request: Disaggregated request received without bootstrap room id.",
                       nullptr};
  return error_body(anthropic ? Api::kMessages : Api::kResponses, error);
}

// Their models have no bootstrap fields, so on a disaggregated engine they have no room.
Awaitable<void> answer_without_room(Exchange& exchange, SglangScheduler& scheduler) {
  const bool anthropic = exchange.path == "/v1/messages";
  if (exchange.services.config.sglang.mode == SglangMode::kNull) {
    co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
    co_return;
  }
  ++scheduler.counters().missing_room;
  co_await answer_json(exchange, 400, no_room_text(anthropic));
}

}  // namespace

Awaitable<void> serve_sglang_route(Exchange& exchange, SglangScheduler& scheduler,
                                   std::int64_t bootstrap_port) {
  const auto route = methods().find(exchange.path);
  if (!authorized(exchange)) {
    co_await answer_json(exchange, 401, R"({"error":"Unauthorized"})");
    co_return;
  }
  if (route == methods().end()) {
    co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
    co_return;
  }
  if ((" " + route->second + " ").find(" " + exchange.request.method + " ") == std::string::npos) {
    const HeaderList headers{{"allow", route->second}};
    co_await exchange.writer.full(405, "application/json", headers, R"({"detail":"Method Not Allowed"})");
    co_return;
  }
  if (const auto api = sglang_api_of(exchange.path)) {
    co_await serve_sglang_generation(exchange, scheduler, *api);
  } else if (exchange.path == "/abort_request") {
    co_await answer_abort(exchange, scheduler);
  } else if (exchange.path.ends_with("server_info")) {
    co_await sleep_for(exchange.plan.delay_before);
    co_await answer_json(exchange, 200, server_info_text(scheduler.engine(), bootstrap_port));
  } else if (exchange.path.starts_with("/health")) {
    co_await answer_health(exchange, scheduler);
  } else if (exchange.path.ends_with("model_info")) {
    co_await answer_json(exchange, 200, model_info_text(exchange.services.config));
  } else if (exchange.path == "/v1/responses" || exchange.path == "/v1/messages") {
    co_await answer_without_room(exchange, scheduler);
  } else if (exchange.path == "/flush_cache") {
    const bool flushed = scheduler.engine().gauges().queued == 0 && scheduler.engine().reset_prefix_cache();
    co_await exchange.writer.full(flushed ? 200 : 400, "text/plain", {}, flushed ? kFlushed : kNotFlushed);
  } else {
    if (exchange.path.ends_with("tokenize"))
      exchange.path = exchange.path.ends_with("detokenize") ? "/detokenize" : "/tokenize";
    const bool known = co_await serve_info_route(exchange);
    if (!known) co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
  }
}

}  // namespace handoff::mock
