// What D makes of the kv_transfer_params it was given: pure, from JSON to a verdict.
#pragma once

#include <optional>

#include "api_request.hpp"
#include "engine.hpp"
#include "side_channel.hpp"

namespace handoff::mock {

enum class HandoffVerdict {
  kReadable,        // ask P
  kHangs,           // a key is missing: parked for ever
  kKillsEngine,     // no block ids: an assertion in the scheduler
  kConfusesEngine,  // a whole number spelled as a float: zero tokens
  kUnreadable,      // all keys there, values of the wrong kind: the read fails
};

HandoffVerdict judge_handoff(const ApiRequest& request);

// Whom to ask or notify; nullopt when the params do not say.
std::optional<RemoteLease> remote_lease(const Json& params);

// P's reply: the eleven keys; `pp_size` too when P pushes.
Reply make_handoff(const Engine& engine, const std::string& request_id, const Json& block_ids,
                   std::int64_t tokens, std::int64_t rank);

// `remote_block_ids` in the shape this release uses.
Json block_ids_json(const MockConfig& config, const BlockIds& blocks);

}  // namespace handoff::mock
