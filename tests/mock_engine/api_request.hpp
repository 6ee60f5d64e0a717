// From the bytes of a request body to what the engine has to do: parsing, validation, canonical prompt. No
// I/O.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config.hpp"
#include "tokenizer.hpp"

namespace handoff::mock {

using Json = nlohmann::json;
// Replies keep the member order of the real engine.
using Reply = nlohmann::ordered_json;

enum class Api { kCompletions, kChat, kResponses, kMessages, kGenerate };

enum class Leg { kPlain, kPrefill, kDecode };

const char* leg_name(Leg leg);

// One error answer of the OpenAI frontend. The only place where its body is built is error_body().
struct ApiError {
  int status = 400;
  std::string message;
  Json param = nullptr;
};

std::string error_body(Api api, const ApiError& error);

struct ApiRequest {
  Api api = Api::kChat;
  Json body;
  std::string model;
  std::vector<std::string> prompt_texts;
  std::vector<Tokens> prompts;
  std::int64_t limit = 16;
  bool limit_given = false;
  std::int64_t min_tokens = 0;
  std::int64_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool usage_in_each_chunk = false;
  bool ignore_eos = false;
  bool echo = false;
  bool return_token_ids = false;
  bool keep_stop_text = false;
  std::vector<std::string> stop;
  std::optional<std::int64_t> logprobs;  // how many alternatives
  std::optional<std::string> forced_tool;
  std::optional<double> cache_hit_threshold;  // of the prompt, cached or in the store; else the request ends
  Json kv_params;                             // as the engine sees it: null or an object
  Leg leg = Leg::kPlain;

  std::int64_t prompt_tokens() const;
};

// Bodies nested deeper are refused before anything recursive touches them.
inline constexpr int kMaxJsonDepth = 256;

// Null when `text` is not JSON (or nested too deeply).
std::optional<Json> parse_json(std::string_view text);

std::variant<ApiRequest, ApiError> parse_api_request(Api api, const Json& body, const MockConfig& config);

// The text a chat request is turned into; shared with /tokenize and render.
std::string chat_prompt_text(const Json& body);

std::string dump(const Json& value);
std::string dump(const Reply& value);

}  // namespace handoff::mock
