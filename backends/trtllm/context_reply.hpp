#pragma once

#include <cstdint>
#include <string_view>

#include "backends/trtllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {

/// What a context reply with a 2xx status brings. Everything is a view of the reply, valid until the entry
/// returns, or a constant.
struct ContextReply {
  enum class Kind : std::uint8_t {
    finished,  ///< the request ended in the context phase: this reply is the answer
    handoff,   ///< generation goes on from here
    missing,   ///< it goes on, but nothing is handed over: generation can do the whole request
    invalid,   ///< something that must not reach the generation engine
  };
  Kind kind = Kind::invalid;
  std::string_view defect;  ///< invalid: a phrase that names the field
  sdk::Object answer;
  sdk::Object choice;           ///< the only element of `choices`
  sdk::Object params;           ///< handoff: `disaggregated_params`
  std::string_view prompt_ids;  ///< handoff: JSON list of integers, or a JSON string of base64
  bool ids_are_base64 = false;
};

/// The gate of both schedules: `missing` is a request that goes on, with its parameters not looked at;
/// `finished` and `invalid` as above.
ContextReply read_completion(const sdk::Host& host, std::string_view reply);

/// The same, and what is handed over.
ContextReply read_context_reply(const sdk::Host& host, std::string_view reply, Api api);

}  // namespace handoff::trtllm
