#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "backends/sglang/pairing.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

// Bodies of the two requests that one client request becomes: the client's bytes with a few members
// exchanged. The pieces view `pairing`, and are valid until the entry returns.
namespace handoff::sglang {

/// Where a client, too, may say on which prefill rank its prompt is to be.
inline constexpr std::string_view kPrefillRankMember = "disagg_prefill_dp_rank";

/// For prefill. No limit on tokens: the engine makes one by itself. Not streamed, so that its failure has a
/// status.
std::vector<handoff_piece> prefill_body(const sdk::Object& body, const Pairing& pairing);

/// For decode. `prefill_rank`: which of prefill's ranks has the KV, if one was chosen; decimal digits.
std::vector<handoff_piece> decode_body(const sdk::Object& body, const Pairing& pairing,
                                       std::optional<std::string_view> prefill_rank);

}  // namespace handoff::sglang
