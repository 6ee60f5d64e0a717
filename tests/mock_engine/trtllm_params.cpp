#include "trtllm_params.hpp"
#include "tests/mock_engine/json_member.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace handoff::mock {
namespace {

// Thrown inside this file only.
struct Refused {
  std::string message;
};

[[noreturn]] void refuse(const std::string& name, const std::string& rule) {
  throw Refused{"1 validation error: disaggregated_params." + name + ": " + rule};
}

std::optional<std::int64_t> integer(const Json& params, const char* name) {
  const Json* value = member(params, name);
  if (!value) return std::nullopt;
  // Like pydantic: a float without a fraction passes, although its digits are not those that were meant.
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::floor(number) == number && std::abs(number) < 9.2e18) return static_cast<std::int64_t>(number);
  }
  if (!value->is_number_integer()) refuse(name, "Input should be a valid integer");
  return value->get<std::int64_t>();
}

std::optional<std::string> text(const Json& params, const char* name) {
  const Json* value = member(params, name);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(name, "Input should be a valid string");
  return value->get<std::string>();
}

bool is_known(const std::string& name) {
  static constexpr std::array kNames{"request_type",         "first_gen_tokens",
                                     "first_gen_log_probs",  "first_gen_logits",
                                     "ctx_request_id",       "draft_tokens",
                                     "encoded_opaque_state", "disagg_request_id",
                                     "ctx_dp_rank",          "ctx_usage",
                                     "ctx_info_endpoint",    "schedule_style",
                                     "conversation_id",      "return_prompt_token_ids_b64",
                                     "resolved_thinking"};
  for (const char* known : kNames) {
    if (name == known) return true;
  }
  return false;
}

TrtllmParams parse_checked(const Json& params) {
  if (!params.is_object())
    throw Refused{"1 validation error: disaggregated_params: Input should be an object"};
  for (const auto& [name, value] : params.items()) {
    if (!is_known(name)) refuse(name, "Extra inputs are not permitted");
  }
  TrtllmParams out;
  const auto type = text(params, "request_type");
  if (type == "context_only") {
    out.type = TrtllmParams::Type::kContextOnly;
  } else if (type == "generation_only") {
    out.type = TrtllmParams::Type::kGenerationOnly;
  } else if (type != "context_and_generation") {
    refuse("request_type", "Unknown request type");
  }
  out.ctx_request_id = integer(params, "ctx_request_id");
  out.disagg_request_id = integer(params, "disagg_request_id");
  out.opaque_state = text(params, "encoded_opaque_state");
  out.info_endpoint = text(params, "ctx_info_endpoint");
  const auto style = integer(params, "schedule_style");
  if (style && *style != 0 && *style != 1) refuse("schedule_style", "Input should be 0 or 1");
  out.generation_first = style == 1;
  const Json* base64 = member(params, "return_prompt_token_ids_b64");
  if (base64 && !base64->is_boolean())
    refuse("return_prompt_token_ids_b64", "Input should be a valid boolean");
  out.wants_base64 = base64 && base64->get<bool>();
  if (const Json* first = member(params, "first_gen_tokens")) {
    if (!first->is_array()) refuse("first_gen_tokens", "Input should be a valid list");
    if (!first->empty() && first->front().is_number_integer())
      out.first_token = first->front().get<std::int64_t>();
  }
  return out;
}

std::string encode_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

std::optional<std::string> decode_base64(const std::string& text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  const auto data_end = text.find_last_not_of('=');
  const std::size_t padding = data_end == std::string::npos ? 0 : text.size() - 1 - data_end;
  bytes.resize(static_cast<std::size_t>(size) - std::min<std::size_t>(padding, 2));
  return bytes;
}

}  // namespace

std::variant<TrtllmParams, ApiError> parse_trtllm_params(const Json& body) {
  try {
    return parse_checked(body.at("disaggregated_params"));
  } catch (const Refused& refused) {
    return ApiError{400, refused.message, "disaggregated_params"};
  }
}

Leg trtllm_leg_of(const Json& body) {
  if (!body.is_object()) return Leg::kPlain;
  const Json* params = member(body, "disaggregated_params");
  if (!params || !params->is_object()) return Leg::kPlain;
  const Json* type = member(*params, "request_type");
  if (!type || !type->is_string()) return Leg::kPlain;
  if (*type == "context_only") return Leg::kPrefill;
  return *type == "generation_only" ? Leg::kDecode : Leg::kPlain;
}

std::string trtllm_lease_name(std::int64_t ctx_request_id, std::int64_t disagg_request_id) {
  return std::to_string(ctx_request_id) + "/" + std::to_string(disagg_request_id);
}

std::string make_opaque_state(const Engine& engine) {
  return encode_base64(dump(Json{{"endpoint", make_info_endpoint(engine)}}));
}

std::optional<RemoteLease> read_opaque_state(const std::string& state) {
  const auto bytes = decode_base64(state);
  const auto json = bytes ? parse_json(*bytes) : std::nullopt;
  if (!json || !json->is_object() || !json->contains("endpoint")) return std::nullopt;
  return read_info_endpoint(json->at("endpoint").get<std::string>());
}

std::string make_info_endpoint(const Engine& engine) {
  return engine.config().side_channel_host + "|" + std::to_string(engine.side_channel_port) + "|" +
         engine.engine_id(0);
}

std::optional<RemoteLease> read_info_endpoint(const std::string& endpoint) {
  const auto first = endpoint.find('|');
  const auto second = endpoint.find('|', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  RemoteLease lease;
  lease.host = endpoint.substr(0, first);
  std::from_chars(endpoint.data() + first + 1, endpoint.data() + second, lease.port);
  lease.engine_id = endpoint.substr(second + 1);
  return lease;
}

Reply context_reply_params(const Engine& engine, std::int64_t disagg_request_id,
                           std::optional<std::int64_t> ctx_request_id, Token first_token) {
  const bool handed = ctx_request_id.has_value();
  Reply out;
  out["request_type"] = "context_only";
  out["first_gen_tokens"] = Reply::array({first_token});
  out["first_gen_log_probs"] = nullptr;
  out["first_gen_logits"] = nullptr;
  out["ctx_request_id"] = handed ? Reply(*ctx_request_id) : Reply(nullptr);
  out["encoded_opaque_state"] = handed ? Reply(make_opaque_state(engine)) : Reply(nullptr);
  out["draft_tokens"] = nullptr;
  out["disagg_request_id"] = handed ? Reply(disagg_request_id) : Reply(nullptr);
  out["ctx_dp_rank"] = 0;
  out["ctx_info_endpoint"] = nullptr;
  out["schedule_style"] = nullptr;
  out["ctx_usage"] = nullptr;
  out["return_prompt_token_ids_b64"] = false;
  out["resolved_thinking"] = nullptr;
  return out;
}

std::string base64_of_ids(const Tokens& tokens) {
  std::string bytes;
  for (const Token token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(token >> shift & 0xff);
  }
  return encode_base64(bytes);
}

std::optional<Tokens> ids_of_base64(const std::string& text) {
  const auto bytes = decode_base64(text);
  if (!bytes || bytes->size() % 4 != 0) return std::nullopt;
  Tokens tokens;
  for (std::size_t at = 0; at < bytes->size(); at += 4) {
    Token token = 0;
    for (std::size_t i = 4; i-- > 0;) token = token << 8 | static_cast<unsigned char>((*bytes)[at + i]);
    tokens.push_back(token);
  }
  return tokens;
}

std::string trtllm_signature(const std::string& key, const TrtllmParams& params) {
  if (!params.opaque_state && !params.info_endpoint) return {};
  const Json payload{
      {"ctx_info_endpoint", params.info_endpoint ? Json(*params.info_endpoint) : Json(nullptr)},
      {"encoded_opaque_state", params.opaque_state ? Json(*params.opaque_state) : Json(nullptr)}};
  const std::string text = payload.dump(-1, ' ', true);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &size);
  std::string out = "sha256=";
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (unsigned int i = 0; i < size; ++i) {
    out += kDigits[digest.at(i) >> 4];
    out += kDigits[digest.at(i) & 15];
  }
  return out;
}

}  // namespace handoff::mock
