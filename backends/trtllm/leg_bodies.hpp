#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/trtllm/context_reply.hpp"
#include "backends/trtllm/endpoint.hpp"
#include "backends/trtllm/handoff_signature.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

// Bodies of the requests that one client request becomes. All are the client's bytes with a few members
// exchanged; pieces view the client's body and the texts that were given, and last as long as those.
namespace handoff::trtllm {

enum class Schedule : std::uint8_t { context_first, generation_first };

/// `disaggregated_params` of a context request.
std::string context_params(std::string_view disagg_id, Schedule schedule);

/// Computes the prompt and one token. Token limits, `min_tokens` and `ignore_eos` stay: the engine caps the
/// phase by itself, and without them an end token would end the request with nothing to hand over.
std::vector<handoff_piece> context_body(const sdk::Object& body, std::string_view params);

/// A generation request's parameters, as pieces, and what of them has to be signed.
struct GenerationParams {
  std::vector<handoff_piece> pieces;
  ProtectedFields protected_fields;
};

/// The context engine's own object, turned into a generation request; every other byte is as it came.
GenerationParams handed_over_params(const ContextReply& reply);

/// For a context engine that has not been asked yet. `info` is the `disaggregated_params` of its
/// `/server_info`, `endpoint` its first `ctx_info_endpoint`, both of which must outlive the pieces.
GenerationParams announced_params(const sdk::Object& info, std::string_view endpoint,
                                  std::string_view disagg_id);

/// The client's request with these parameters, and with the prompt as token ids if `prompt_ids` is given.
/// `ids_field` is where the path takes them.
std::vector<handoff_piece> generation_body(const sdk::Object& body, std::vector<handoff_piece> params,
                                           std::string_view ids_field, std::string_view prompt_ids);

/// Base64 of 32-bit little-endian integers (a JSON string) as a JSON list; nothing when it is none.
std::optional<std::string> ids_of_base64(std::string_view json);

}  // namespace handoff::trtllm
