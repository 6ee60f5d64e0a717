#include "sglang_request.hpp"
#include "tests/mock_engine/json_member.hpp"

#include <utility>

namespace handoff::mock {
namespace {

constexpr std::int64_t kDefaultNewTokens = 128;

// Thrown inside this file only.
struct Refused {
  ApiError error;
};

[[noreturn]] void refuse(std::string message) {
  throw Refused{{400, std::move(message), nullptr}};
}

std::optional<std::int64_t> integer(const Json& body, const char* name) {
  const Json* value = member(body, name);
  if (!value) return std::nullopt;
  if (!value->is_number_integer()) refuse(std::string(name) + " should be a valid integer");
  return value->get<std::int64_t>();
}

// A room is compared bit by bit: one that went through a double meets nobody.
std::uint64_t room_from(const Json& value) {
  if (!value.is_number_integer() ||
      (value.is_number_integer() && !value.is_number_unsigned() && value.get<std::int64_t>() < 0)) {
    refuse("bootstrap_room should be a valid integer");
  }
  return value.get<std::uint64_t>();
}

// /generate asks in other words for what /v1/completions asks.
Json as_completion(const Json& body) {
  Json out = Json::object();
  const Json* text = member(body, "text");
  const Json* ids = member(body, "input_ids");
  if ((text == nullptr) == (ids == nullptr))
    refuse("Either text, input_ids or input_embeds should be provided.");
  out["prompt"] = text ? *text : *ids;
  const Json* sampling = member(body, "sampling_params");
  const Json& first = sampling && sampling->is_array() && !sampling->empty() ? sampling->front()
                      : sampling                                             ? *sampling
                                                                             : Json::object();
  if (!first.is_object()) refuse("sampling_params should be a dictionary");
  const Json* limit = member(first, "max_new_tokens");
  out["max_tokens"] = limit ? *limit : Json(kDefaultNewTokens);
  for (const char* name : {"temperature", "top_p", "stop", "n", "ignore_eos"}) {
    if (const Json* value = member(first, name)) out[name] = *value;
  }
  for (const char* name : {"stream", "cache_salt"}) {
    if (const Json* value = member(body, name)) out[name] = *value;
  }
  return out;
}

// The parser of the OpenAI endpoints is vLLM's; what SGLang does not know is taken out first.
Json for_parser(SglangApi api, const Json& body) {
  if (api == SglangApi::kGenerate) return as_completion(body);
  Json out = body;
  out.erase("kv_transfer_params");
  out.erase("echo");
  // SGLang accepts stream_options without stream.
  if (!member(body, "stream") || *member(body, "stream") != true) out.erase("stream_options");
  return out;
}

bool is_batch(SglangApi api, const Json& parsed) {
  if (api == SglangApi::kChat) return false;
  const Json& prompt = parsed.at("prompt");
  return prompt.is_array() && !prompt.empty() && !prompt.front().is_number();
}

// The list form of a field, or the same value for all.
const Json& of_item(const Json& value, std::size_t prompt, const char* name) {
  if (!value.is_array()) return value;
  if (prompt >= value.size()) refuse(std::string(name) + " is shorter than the batch");
  return value.at(prompt);
}

void read_bootstrap(const Json& body, std::size_t prompt, SglangItem& item) {
  if (const Json* room = member(body, "bootstrap_room")) {
    // One room for a batch means consecutive rooms.
    item.room =
        room->is_array() ? room_from(of_item(*room, prompt, "bootstrap_room")) : room_from(*room) + prompt;
  }
  if (const Json* host = member(body, "bootstrap_host")) {
    const Json& one = of_item(*host, prompt, "bootstrap_host");
    if (!one.is_string()) refuse("bootstrap_host should be a valid string");
    item.host = one.get<std::string>();
  }
  if (const Json* port = member(body, "bootstrap_port")) {
    const Json& one = of_item(*port, prompt, "bootstrap_port");
    if (one.is_null()) return;
    if (!one.is_number_integer()) refuse("bootstrap_port should be a valid integer");
    item.port = one.get<std::int64_t>();
  }
}

std::string rid_of(const Json& body, bool batch, std::size_t prompts, std::size_t prompt, Random& random) {
  const Json* rid = member(body, "rid");
  if (!rid) return random.hex(32);
  if (rid->is_string())
    return batch ? rid->get<std::string>() + "_" + std::to_string(prompt) : rid->get<std::string>();
  if (!rid->is_array() || rid->size() != prompts)
    refuse("The specified rids length mismatch with the batch_size for batch processing.");
  if (!rid->at(prompt).is_string()) refuse("The rid should be a string or a list of strings.");
  return rid->at(prompt).get<std::string>();
}

SglangRequest parse_checked(SglangApi api, const Json& body, const MockConfig& config, Random& random) {
  if (!body.is_object()) refuse("Input should be a valid dictionary");
  const Json words = for_parser(api, body);
  auto parsed = parse_api_request(api == SglangApi::kChat ? Api::kChat : Api::kCompletions, words, config);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) throw Refused{*error};
  SglangRequest out;
  out.api = api;
  out.whole = std::get<ApiRequest>(std::move(parsed));
  out.batch = is_batch(api, words);
  if (const Json* wanted = member(body, "return_logprob"))
    out.return_logprob = wanted->is_array() || *wanted == true;
  out.routed_rank = integer(body, "routed_dp_rank");
  if (!out.routed_rank) out.routed_rank = integer(body, "data_parallel_rank");
  out.prefill_rank = integer(body, "disagg_prefill_dp_rank");
  for (std::size_t prompt = 0; prompt < out.whole.prompts.size(); ++prompt) {
    for (std::int64_t sample = 0; sample < out.whole.n; ++sample) {
      SglangItem item;
      item.rid = rid_of(body, out.batch, out.whole.prompts.size(), prompt, random);
      if (out.rid.empty()) out.rid = item.rid;
      // Samples get ids of the engine's own, and all have their prompt's room.
      if (out.whole.n > 1) item.rid = random.hex(32);
      read_bootstrap(body, prompt, item);
      item.request = out.whole;
      item.request.prompts = {out.whole.prompts[prompt]};
      item.request.prompt_texts = {out.whole.prompt_texts[prompt]};
      item.request.n = 1;
      item.answer = prompt * static_cast<std::size_t>(out.whole.n) + static_cast<std::size_t>(sample);
      out.items.push_back(std::move(item));
    }
  }
  return out;
}

}  // namespace

std::optional<SglangApi> sglang_api_of(const std::string& path) {
  if (path == "/generate") return SglangApi::kGenerate;
  if (path == "/v1/chat/completions") return SglangApi::kChat;
  if (path == "/v1/completions") return SglangApi::kCompletions;
  return std::nullopt;
}

std::variant<SglangRequest, ApiError> parse_sglang_request(SglangApi api, const Json& body,
                                                           const MockConfig& config, Random& random) {
  try {
    return parse_checked(api, body, config, random);
  } catch (const Refused& refused) {
    return refused.error;
  }
}

}  // namespace handoff::mock
