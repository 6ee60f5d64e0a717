// /mock/*: what tests ask and tell the mock. README describes each call.
#include <charconv>
#include <map>
#include <utility>

#include "answers.hpp"
#include "personality.hpp"

namespace handoff::mock {
namespace {

Reply state_of(const Services& services) {
  Reply state = services.engine.state();
  services.personality->add_state(state);
  return state;
}

using Query = std::vector<std::pair<std::string, std::string>>;

std::string percent_decoded(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 3], value, 16).ptr == &text[i + 3]) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Query parse_query(const std::string& text) {
  Query query;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('&', at), text.size());
    const std::string item = text.substr(at, end - at);
    // The first '=' separates: a value may be ">=1".
    const std::size_t equals = std::min(item.find('='), item.size());
    if (!item.empty()) {
      query.emplace_back(percent_decoded(item.substr(0, equals)),
                         percent_decoded(equals < item.size() ? item.substr(equals + 1) : ""));
    }
    at = end + 1;
  }
  return query;
}

std::optional<Reply> looked_up(const Reply& state, const std::string& name) {
  if (name == "blocks_free") return state["blocks"]["free"];
  if (name == "leases") return state["leases"]["live"];
  if (name == "connections") return state["connections"]["open"];
  if (name == "requests") {
    const Reply& r = state["requests"];
    return Reply(r["queued"].get<std::int64_t>() + r["running"].get<std::int64_t>() +
                 r["hanging"].get<std::int64_t>());
  }
  // A path like /v1/completions below requests_by_path contains dots never, so splitting is safe.
  const Reply* at = &state;
  std::size_t from = 0;
  while (from <= name.size()) {
    const std::size_t end = std::min(name.find('.', from), name.size());
    const auto found = at->find(name.substr(from, end - from));
    if (!at->is_object() || found == at->end()) {
      // Paths not asked for yet have been asked for zero times.
      return name.starts_with("requests_by_path.") ? std::optional<Reply>(0) : std::nullopt;
    }
    at = &*found;
    from = end + 1;
  }
  return *at;
}

bool holds(const Reply& state, const Reply& value, const std::string& wanted) {
  if (wanted == "all") return value == state["blocks"]["total"];
  if (value.is_boolean()) return wanted == (value.get<bool>() ? "true" : "false");
  if (value.is_string()) return wanted == value.get<std::string>();
  if (!value.is_number()) return value.is_null() && wanted == "null";
  const bool least = wanted.starts_with(">=");
  const bool most = wanted.starts_with("<=");
  const std::string digits = least || most ? wanted.substr(2) : wanted;
  std::int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const auto actual = value.get<std::int64_t>();
  return least ? actual >= number : most ? actual <= number : actual == number;
}

// Bodies are built in plain functions: GCC 12 cannot keep the initializer lists of JSON objects in a
// coroutine frame.
std::string error_text(const std::string& message) {
  return dump(Reply{{"error", message}});
}
std::string rules_text(std::size_t count) {
  return dump(Reply{{"rules", count}});
}

Awaitable<void> wait_route(Exchange& exchange) {
  std::int64_t timeout_ms = 5000;
  Query conditions = parse_query(exchange.query);
  for (const auto& [name, wanted] : conditions) {
    if (name == "timeout_ms") std::from_chars(wanted.data(), wanted.data() + wanted.size(), timeout_ms);
  }
  std::erase_if(conditions, [](const auto& item) { return item.first == "timeout_ms"; });
  const auto until = Clock::now() + std::chrono::milliseconds(std::min<std::int64_t>(timeout_ms, 600'000));
  while (true) {
    const Reply state = state_of(exchange.services);
    bool all = true;
    for (const auto& [name, wanted] : conditions) {
      const auto value = looked_up(state, name);
      if (!value) {
        co_await answer_json(exchange, 400, error_text("no such condition: " + name));
        co_return;
      }
      all = all && holds(state, *value, wanted);
    }
    if (all || Clock::now() >= until) {
      co_await answer_json(exchange, all ? 200 : 408, dump(state));
      co_return;
    }
    co_await exchange.services.engine.changed().wait_until(until);
  }
}

Reply expectation(const ApiRequest& request) {
  Reply out;
  out["model"] = request.model;
  out["prompts"] = Reply::array();
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    out["prompts"].push_back({{"text", request.prompt_texts[i]}, {"tokens", request.prompts[i].size()}});
  }
  out["choices"] = Reply::array();
  for (const Completion& answer : make_answers(request, AnswerKind::kRight)) {
    Reply choice;
    choice["index"] = answer.index;
    choice["text"] = answer.text;
    choice["token_ids"] = answer.tokens;
    choice["finish_reason"] = answer.finish_reason;
    choice["completion_tokens"] = answer.token_count();
    if (request.forced_tool) {
      choice["tool_call"] = {{"name", *request.forced_tool}, {"arguments", tool_arguments(answer)}};
    }
    out["choices"].push_back(choice);
  }
  out["text"] = out["choices"].front()["text"];
  out["prefill_text"] = kPrefillMark;
  return out;
}

Awaitable<void> expect_route(Exchange& exchange) {
  const auto question = parse_json(exchange.request.body);
  if (!question || !question->is_object() || !question->contains("body")) {
    co_await answer_json(exchange, 400, R"({"error":"need an object with path and body"})");
    co_return;
  }
  const std::string path = question->value("path", "/v1/chat/completions");
  std::optional<Json> body = question->at("body");
  if (body->is_string()) body = parse_json(body->get<std::string>());
  if (!body) {
    co_await answer_json(exchange, 400, R"({"error":"the body is not JSON"})");
    co_return;
  }
  const auto parsed = exchange.services.personality->expected(path, *body);
  if (const PlainAnswer* refusal = std::get_if<PlainAnswer>(&parsed)) {
    co_await answer_json(exchange, refusal->status, refusal->body);
    co_return;
  }
  co_await answer_json(exchange, 200, dump(expectation(std::get<ApiRequest>(parsed))));
}

Awaitable<void> faults_route(Exchange& exchange) {
  FaultRules& faults = exchange.services.faults;
  if (exchange.request.method == "DELETE") {
    faults.clear();
  } else if (exchange.request.method == "GET") {
    co_await answer_json(exchange, 200, dump(faults.list()));
    co_return;
  } else {
    const auto rules = parse_json(exchange.request.body);
    const std::string error = rules ? faults.add(*rules) : "not JSON";
    if (!error.empty()) {
      co_await answer_json(exchange, 400, error_text(error));
      co_return;
    }
  }
  co_await answer_json(exchange, 200, rules_text(faults.size()));
}

Awaitable<void> requests_route(Exchange& exchange) {
  if (exchange.request.method == "DELETE") exchange.services.log.clear();
  co_await answer_json(exchange, 200, dump(exchange.services.log.list()));
}

Awaitable<void> dead_route(Exchange& exchange) {
  const auto body = parse_json(exchange.request.body);
  exchange.services.engine.set_dead(!body || !body->is_object() || body->value("dead", true));
  co_await answer_json(exchange, 200, R"({"ok":true})");
}

Awaitable<void> times_up_route(Exchange& exchange) {
  const auto body = parse_json(exchange.request.body);
  if (!body || !body->is_object()) {
    co_await answer_json(exchange, 400, error_text("need an object with waits and leases"));
    co_return;
  }
  exchange.services.engine.set_times_up(
      {.waits = body->value("waits", false), .leases = body->value("leases", false)});
  co_await answer_json(exchange, 200, R"({"ok":true})");
}

// What a publisher can do to its subscribers. An empty text: done.
std::string act_on_kv_events(Engine& engine, const Json& body) {
  KvEventPublisher* events = engine.kv_events();
  if (!events) return "this engine publishes no events (--kv-events)";
  if (!body.is_object()) return "need an object with lose, restart or publish";
  if (body.contains("lose")) events->lose(body.at("lose").get<std::int64_t>());
  if (body.value("restart", false)) {
    engine.prefix_cache().clear(false);
    events->restart();
  }
  if (body.contains("publish")) {
    if (!body.at("publish").is_array()) return "publish: need a list of events";
    events->publish_raw(body.value("rank", std::int64_t{0}), body.at("publish"));
  }
  return {};
}

Awaitable<void> kv_events_route(Exchange& exchange) {
  const auto body = parse_json(exchange.request.body);
  std::string error = "not JSON";
  if (body) error = act_on_kv_events(exchange.services.engine, *body);
  if (error.empty()) {
    co_await answer_json(exchange, 200, R"({"ok":true})");
  } else {
    co_await answer_json(exchange, 400, error_text(error));
  }
}

Awaitable<void> reset_route(Exchange& exchange) {
  exchange.services.engine.reset_counters();
  exchange.services.personality->reset_counters();
  exchange.services.log.clear();
  exchange.services.faults.clear();
  co_await answer_json(exchange, 200, R"({"ok":true})");
}

Awaitable<void> die_route(Exchange& exchange) {
  co_await answer_json(exchange, 200, R"({"ok":true})");
  exchange.services.die();
}

Awaitable<void> exit_route(Exchange& exchange) {
  co_await answer_json(exchange, 200, R"({"ok":true})");
  exchange.services.exit();
}

Awaitable<void> state_route(Exchange& exchange) {
  co_await answer_json(exchange, 200, dump(state_of(exchange.services)));
}

struct ControlRoute {
  std::string methods;
  Awaitable<void> (*serve)(Exchange&);
};

}  // namespace

Awaitable<void> serve_control_route(Exchange& exchange) {
  static const std::map<std::string, ControlRoute> routes{
      {"/mock/state", {"GET", state_route}},       {"/mock/requests", {"GET DELETE", requests_route}},
      {"/mock/wait", {"GET", wait_route}},         {"/mock/faults", {"GET POST DELETE", faults_route}},
      {"/mock/expect", {"POST", expect_route}},    {"/mock/reset", {"POST", reset_route}},
      {"/mock/dead", {"POST", dead_route}},        {"/mock/die", {"POST", die_route}},
      {"/mock/exit", {"POST", exit_route}},        {"/mock/kv_events", {"POST", kv_events_route}},
      {"/mock/times_up", {"POST", times_up_route}}};
  const auto route = routes.find(exchange.path);
  if (route == routes.end()) {
    co_await answer_json(exchange, 404, R"({"error":"no such control call"})");
  } else if (route->second.methods.find(exchange.request.method) == std::string::npos) {
    co_await answer_json(exchange, 405, R"({"error":"wrong method"})");
  } else {
    bool wrong_type = false;
    try {
      co_await route->second.serve(exchange);
    } catch (const Json::exception&) {
      wrong_type = true;
    }
    if (wrong_type) co_await answer_json(exchange, 400, R"({"error":"a member has the wrong type"})");
  }
}

}  // namespace handoff::mock
