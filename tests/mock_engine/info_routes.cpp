// Everything that needs no generation: health, models, embeddings, metrics; tokenizer_routes has the rest.
#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>

#include "exchange.hpp"

namespace handoff::mock {
namespace {

Reply model_card(const MockConfig& config, const std::string& name) {
  Reply card;
  card["id"] = name;
  card["object"] = "model";
  card["created"] = std::time(nullptr);
  card["owned_by"] = "vllm";
  card["root"] = config.models.front();
  card["parent"] = nullptr;
  card["max_model_len"] = config.context_limit();
  card["permission"] = Reply::array();
  return card;
}

// Bodies are built in plain functions: GCC 12 cannot keep the initializer lists of JSON objects in a
// coroutine frame.
Reply model_list(const MockConfig& config) {
  Reply list = Reply::array();
  for (const std::string& name : config.models) list.push_back(model_card(config, name));
  return Reply{{"object", "list"}, {"data", list}};
}

ApiError unknown_model(const std::string& name) {
  return {404, "The model `" + name + "` does not exist.", "model"};
}

Awaitable<void> answer_models(Exchange& exchange) {
  const MockConfig& config = exchange.services.config;
  if (exchange.path == "/v1/models") {
    co_await answer_json(exchange, 200, dump(model_list(config)));
    co_return;
  }
  const std::string name = exchange.path.substr(std::strlen("/v1/models/"));
  if (std::find(config.models.begin(), config.models.end(), name) == config.models.end()) {
    co_await answer_error(exchange, Api::kChat, unknown_model(name));
    co_return;
  }
  co_await answer_json(exchange, 200, dump(model_card(config, name)));
}

// The model check of the endpoints that are not parse_api_request()'s; null when fine.
std::optional<ApiError> wrong_model(const MockConfig& config, const Json& body) {
  if (!body.is_object())
    return ApiError{400, "1 validation error: Input should be a valid dictionary", nullptr};
  const auto model = body.find("model");
  if (model == body.end() || model->is_null()) return std::nullopt;
  if (model->is_string() && std::find(config.models.begin(), config.models.end(),
                                      model->get<std::string>()) != config.models.end()) {
    return std::nullopt;
  }
  return unknown_model(model->is_string() ? model->get<std::string>() : dump(*model));
}

std::string base64_floats(const std::vector<float>& values) {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      word = (word << 8) | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j)
      out += i + j > bytes.size() ? '=' : kAlphabet[(word >> (18 - 6 * j)) & 63U];
  }
  return out;
}

Reply embedding(const Json& input, std::size_t index, bool packed) {
  const std::string text = input.is_string() ? input.get<std::string>() : dump(input);
  std::vector<float> values;
  for (std::int64_t i = 0; i < 8; ++i) {
    values.push_back(static_cast<float>(word_token(hash_text(text), i) % 1000) / 1000.0F);
  }
  Reply out;
  out["index"] = index;
  out["object"] = "embedding";
  out["embedding"] = packed ? Reply(base64_floats(values)) : Reply(values);
  return out;
}

Reply embeddings(Engine& engine, const Json& body) {
  const Json& input = body.at("input");
  const bool many = input.is_array() && !input.empty() && !input.front().is_number();
  const Json inputs = many ? input : Json::array({input});
  const bool packed = body.value("encoding_format", Json("float")) == "base64";
  Reply data = Reply::array();
  std::size_t tokens = 0;
  for (const Json& one : inputs) {
    tokens += encode(one.is_string() ? one.get<std::string>() : dump(one)).size();
    data.push_back(embedding(one, data.size(), packed));
  }
  Reply out;
  out["id"] = "embd-" + engine.random().hex(32);
  out["object"] = "list";
  out["created"] = std::time(nullptr);
  out["model"] = Reply(body.value("model", Json(engine.config().models.front())));
  out["data"] = data;
  out["usage"] = {{"prompt_tokens", tokens}, {"total_tokens", tokens}};
  return out;
}

Awaitable<void> answer_embeddings(Exchange& exchange, const Json& body) {
  const auto input = body.find("input");
  if (input == body.end() || input->is_null()) {
    co_await answer_error(exchange, Api::kChat, invalid_field("input", "Field required"));
    co_return;
  }
  co_await answer_json(exchange, 200, dump(embeddings(exchange.services.engine, body)));
}

// False when the path is not one of them.
Awaitable<bool> serve_json_route(Exchange& exchange) {
  const std::optional<Json> body = co_await read_json_body(exchange, Api::kChat);
  if (!body) co_return true;
  const bool rendered = co_await serve_render_route(exchange, *body);
  if (rendered) co_return true;
  if (const auto error = wrong_model(exchange.services.config, *body)) {
    co_await answer_error(exchange, Api::kChat, *error);
    co_return true;
  }
  const bool tokenized = co_await serve_tokenize_route(exchange, *body);
  if (tokenized) co_return true;
  if (exchange.path != "/v1/embeddings") co_return false;
  co_await answer_embeddings(exchange, *body);
  co_return true;
}

}  // namespace

Awaitable<bool> serve_info_route(Exchange& exchange) {
  Engine& engine = exchange.services.engine;
  const std::string& path = exchange.path;
  co_await sleep_for(exchange.plan.delay_before);
  if (path == "/health" || path == "/ping") {
    co_await exchange.writer.full(engine.dead() ? 503 : 200, "", {}, "");
  } else if (path == "/version") {
    co_await answer_json(exchange, 200, R"({"version":"0.29.0+mock"})");
  } else if (path == "/load") {
    co_await answer_json(exchange, 200, R"({"server_load":0})");
  } else if (path == "/metrics") {
    co_await exchange.writer.full(200, "text/plain; version=1.0.0; charset=utf-8", {}, metrics_text(engine));
  } else if (path.starts_with("/v1/models")) {
    co_await answer_models(exchange);
  } else if (path == "/reset_prefix_cache") {
    // vLLM's endpoint of its development mode.
    co_await answer_json(exchange, 200,
                         engine.reset_prefix_cache() ? R"({"success":true})" : R"({"success":false})");
  } else if (exchange.request.method == "POST") {
    const bool known = co_await serve_json_route(exchange);
    co_return known;
  } else {
    co_return false;
  }
  co_return true;
}

}  // namespace handoff::mock
