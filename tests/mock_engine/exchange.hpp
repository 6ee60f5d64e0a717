// What a handler gets: one request, the way to answer it, and the process's long-lived objects.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine.hpp"
#include "fault_rules.hpp"
#include "request_log.hpp"
#include "response_writer.hpp"

namespace handoff::mock {

class KvConnector;
class Personality;

// Which of the mock's ports a connection came in on.
enum class Door { kEngine, kControl, kPeer };

// Built by main(); outlives every session.
struct Services {
  const MockConfig& config;
  Engine& engine;
  FaultRules& faults;
  RequestLog& log;
  std::function<void()> die;   // RST on everything but the control port
  std::function<void()> exit;  // end the process after the current answer
  Personality* personality = nullptr;
};

// Lives in HttpSession for one request.
struct Exchange {
  Services& services;
  const LoggedRequest& request;
  const FaultPlan& plan;
  ResponseWriter& writer;
  std::string path;
  std::string query;

  const std::string* header(const std::string& name) const;
};

// Routes of the engine. Answers 404 and 405 itself.
Awaitable<void> serve_engine_route(Exchange& exchange, KvConnector& connector);
// Completions, chat, responses, messages, generate.
Awaitable<void> serve_generation(Exchange& exchange, Api api, KvConnector& connector);
Awaitable<void> serve_control_route(Exchange& exchange);
// Models, tokenize, render, embeddings, version …; false when the path is not one of them.
Awaitable<bool> serve_info_route(Exchange& exchange);

// The two halves of the tokenizer's endpoints; false when the path is not one of them.
Awaitable<bool> serve_render_route(Exchange& exchange, const Json& body);
Awaitable<bool> serve_tokenize_route(Exchange& exchange, const Json& body);

std::string metrics_text(Engine& engine);

Awaitable<void> answer_json(Exchange& exchange, int status, std::string body);
Awaitable<void> answer_error(Exchange& exchange, Api api, ApiError error);
// The body as JSON; on a wrong content type or syntax the 400 is already sent and the result empty.
Awaitable<std::optional<Json>> read_json_body(Exchange& exchange, Api api);
ApiError engine_dead_error();
ApiError invalid_field(const std::string& field, const std::string& rule);

// One table, because a wrong method on any of them is 405.
struct ApiRoute {
  const char* path;
  Api api;
};
std::optional<Api> api_of(const std::string& path);

}  // namespace handoff::mock
