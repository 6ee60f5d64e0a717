// Which path means what, and the answers that are not about one endpoint.
#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "exchange.hpp"

namespace handoff::mock {
namespace {

constexpr std::array<ApiRoute, 5> kApiRoutes{{{"/v1/completions", Api::kCompletions},
                                              {"/v1/chat/completions", Api::kChat},
                                              {"/v1/responses", Api::kResponses},
                                              {"/v1/messages", Api::kMessages},
                                              {"/inference/v1/generate", Api::kGenerate}}};

const std::map<std::string, std::string>& method_of_path() {
  static const std::map<std::string, std::string> table{
      {"/health", "GET"},
      {"/ping", "GET POST"},
      {"/version", "GET"},
      {"/load", "GET"},
      {"/metrics", "GET"},
      {"/v1/models", "GET"},
      {"/tokenize", "POST"},
      {"/detokenize", "POST"},
      {"/v1/tokenize", "POST"},
      {"/v1/detokenize", "POST"},
      {"/reset_prefix_cache", "POST"},
      {"/v1/embeddings", "POST"},
      {"/v1/chat/completions/render", "POST"},
      {"/v1/completions/render", "POST"},
      {"/v1/completions", "POST"},
      {"/v1/chat/completions", "POST"},
      {"/v1/responses", "POST"},
      {"/v1/messages", "POST"},
      {"/inference/v1/generate", "POST"},
  };
  return table;
}

bool guarded(const std::string& path) {
  return path.starts_with("/v1") || path.starts_with("/v2") || path.starts_with("/inference") ||
         path.starts_with("/cohere");
}

bool authorized(const Exchange& exchange) {
  const std::string& key = exchange.services.config.api_key;
  if (key.empty() || !guarded(exchange.path)) return true;
  const std::string* value = exchange.header("authorization");
  return value && *value == "Bearer " + key;
}

}  // namespace

const std::string* Exchange::header(const std::string& name) const {
  for (const auto& [key, value] : request.headers) {
    if (std::equal(key.begin(), key.end(), name.begin(), name.end(),
                   [](unsigned char a, unsigned char b) { return std::tolower(a) == b; })) {
      return &value;
    }
  }
  return nullptr;
}

std::optional<Api> api_of(const std::string& path) {
  for (const ApiRoute& route : kApiRoutes) {
    if (path == route.path) return route.api;
  }
  return std::nullopt;
}

Awaitable<void> answer_json(Exchange& exchange, int status, std::string body) {
  co_await exchange.writer.full(status, "application/json", {}, std::move(body));
}

Awaitable<void> answer_error(Exchange& exchange, Api api, ApiError error) {
  co_await sleep_for(exchange.plan.delay_after);
  co_await answer_json(exchange, error.status, error_body(api, error));
}

Awaitable<std::optional<Json>> read_json_body(Exchange& exchange, Api api) {
  const std::string* type = exchange.header("content-type");
  std::string media = type ? type->substr(0, type->find(';')) : std::string();
  while (!media.empty() && media.back() == ' ') media.pop_back();
  std::transform(media.begin(), media.end(), media.begin(), [](unsigned char c) { return std::tolower(c); });
  std::optional<Json> body;
  ApiError error;
  if (media != "application/json") {
    error.message = "Unsupported Media Type: Only 'application/json' is allowed";
  } else {
    body = parse_json(exchange.request.body);
    if (!body)
      error.message =
          "1 validation error: {'type': 'json_invalid', 'loc': ('body',), 'msg': 'JSON decode error'}";
  }
  if (!body) {
    ++exchange.services.engine.counters().rejected;
    co_await answer_error(exchange, api, error);
  }
  co_return body;
}

Awaitable<void> serve_engine_route(Exchange& exchange, KvConnector& connector) {
  const auto route = method_of_path().find(exchange.path);
  if (!authorized(exchange)) {
    co_await answer_json(exchange, 401, R"({"error":"Unauthorized"})");
    co_return;
  }
  const bool model_card = exchange.path.starts_with("/v1/models/");
  if (route == method_of_path().end() && !model_card) {
    co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
    co_return;
  }
  const std::string allowed = model_card ? "GET" : route->second;
  if ((" " + allowed + " ").find(" " + exchange.request.method + " ") == std::string::npos) {
    const HeaderList headers{{"allow", allowed}};
    const std::string body = exchange.request.method == "HEAD" ? "" : R"({"detail":"Method Not Allowed"})";
    co_await exchange.writer.full(405, "application/json", headers, body);
    co_return;
  }
  if (const auto api = api_of(exchange.path)) {
    co_await serve_generation(exchange, *api, connector);
    co_return;
  }
  const bool known = co_await serve_info_route(exchange);
  if (!known) co_await answer_json(exchange, 404, R"({"detail":"Not Found"})");
}

}  // namespace handoff::mock
