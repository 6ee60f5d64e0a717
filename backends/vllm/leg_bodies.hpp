#pragma once

#include <string_view>
#include <vector>

#include "backends/vllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

// Bodies of the three requests that one client request can become. All are the client's bytes with a few
// members exchanged; the pieces view `params` and `cache_salt`, and are valid until the entry returns.
namespace handoff::vllm {

/// What NIXL's prefill is asked with.
extern const std::string_view kAskForHandoff;

/// More that prefill may be asked for.
struct PrefillWish {
  bool tokens = false;  ///< the reply shall have the prompt's token ids
  /// That one token must not be an end, where the path can say so: an engine that ends by itself hands
  /// nothing over, and a decode engine that was asked at once waits for it.
  bool no_end = false;
};

/// Asks the prefill engine for one token, with these `kv_transfer_params` (JSON; none if empty).
std::vector<handoff_piece> prefill_body(const sdk::Host& host, const sdk::Object& body,
                                        const Endpoint& endpoint, std::string_view params,
                                        const PrefillWish& wish = {});

/// The client's request with `kv_transfer_params` (JSON; none if empty), and with `prompt` (JSON) instead of
/// its own unless that is empty.
std::vector<handoff_piece> decode_body(const sdk::Host& host, const sdk::Object& body,
                                       const Endpoint& endpoint, std::string_view params,
                                       std::string_view prompt = {});

/// Makes the decode engine take the handoff and drop it. The salt (a JSON string) keeps the prompt out of the
/// engine's prefix cache, so that it pulls, and tells prefill that it has.
std::vector<handoff_piece> release_body(const sdk::Host& host, const sdk::Object& body,
                                        const Endpoint& endpoint, std::string_view params,
                                        std::string_view cache_salt);

}  // namespace handoff::vllm
