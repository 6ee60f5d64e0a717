#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::missing_handoff {

enum class Policy : std::uint8_t { decode_only, error };

/// The setting's declaration.
inline constexpr handoff_config_key kConfigKey{
    .name = sdk::bytes("DYN_SIDECAR_ON_MISSING_HANDOFF"),
    .accepts = sdk::bytes("decode-only,error"),
    .default_value = sdk::bytes("decode-only"),
    .help = sdk::bytes("What to do when prefill succeeds without a handoff: run the request on the decode "
                       "engine alone, or answer 502."),
    .kind = HANDOFF_CONFIG_CHOICE,
    .flags = 0,
};

/// Throws std::invalid_argument for a value that the declaration does not have.
Policy read_policy(const sdk::Config& config);

/// Of a prefill reply that brings nothing. Constants.
struct Finding {
  std::string_view reason;  ///< counted, and logged as the reason for decode-only
  std::string_view cause;   ///< for the operator, where it is likely to be mended
  std::uint32_t leg = HANDOFF_NO_LEG;
};

/// Settles the exchange by the policy. `headers` are those of a request to decode alone.
void settle(Policy policy, const Finding& finding, const sdk::Host& host,
            std::span<const handoff_header> headers, sdk::Turn& turn);

}  // namespace handoff::missing_handoff
