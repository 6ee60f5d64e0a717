// `disaggregated_params` of TensorRT-LLM: what a request says, what a context engine answers. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "api_request.hpp"
#include "engine.hpp"
#include "side_channel.hpp"

namespace handoff::mock {

// Engines use smaller ids for requests of their own.
inline constexpr std::int64_t kLeastGlobalId = std::int64_t{1} << 42;

struct TrtllmParams {
  enum class Type { kContextOnly, kGenerationOnly, kContextAndGeneration };

  Type type = Type::kContextAndGeneration;
  std::optional<std::int64_t> ctx_request_id;
  std::optional<std::int64_t> disagg_request_id;
  std::optional<std::int64_t> first_token;  // of first_gen_tokens
  std::optional<std::string> opaque_state;
  std::optional<std::string> info_endpoint;
  bool generation_first = false;
  bool wants_base64 = false;
};

// The engine's schema check: unknown members and wrong types are refused. `body` has the member.
std::variant<TrtllmParams, ApiError> parse_trtllm_params(const Json& body);

// Which leg a body belongs to, good or bad.
Leg trtllm_leg_of(const Json& body);

// Where a context engine keeps a request, by the ids that name it.
std::string trtllm_lease_name(std::int64_t ctx_request_id, std::int64_t disagg_request_id);

// The transceiver's address as context tells it; nullopt when generation can make nothing of it.
std::string make_opaque_state(const Engine& engine);
std::optional<RemoteLease> read_opaque_state(const std::string& state);
// The same for `ctx_info_endpoint`, `host:port/engine-id`.
std::string make_info_endpoint(const Engine& engine);
std::optional<RemoteLease> read_info_endpoint(const std::string& endpoint);

// The object in the context reply's only choice. Without an id: the request ended in this phase.
Reply context_reply_params(const Engine& engine, std::int64_t disagg_request_id,
                           std::optional<std::int64_t> ctx_request_id, Token first_token);

std::string base64_of_ids(const Tokens& tokens);
std::optional<Tokens> ids_of_base64(const std::string& text);

// Value of x-trtllm-disagg-auth for a request with these parameters; nothing to sign: empty.
std::string trtllm_signature(const std::string& key, const TrtllmParams& params);

}  // namespace handoff::mock
