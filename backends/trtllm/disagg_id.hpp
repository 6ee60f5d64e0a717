#pragma once

#include <cstdint>
#include <string>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {

/// Engines take ids below this for their own requests' ids.
inline constexpr std::uint64_t kLeastDisaggId = std::uint64_t{1} << 42;

/// A fresh `disagg_request_id`: an integer in [2^42, 2^63), in decimal digits. Both engines use it as the
/// request's own id, so that two live requests with the same one are mixed up.
///
/// It is random in all bits, without parts for time, node and process. Such parts are as unique as their
/// configuration: 14 bits for node and process collide among a few dozen sidecars that nobody numbered, and
/// then for every request of the same millisecond. Of a million ids alive at once, two are equal with a
/// probability of 5e-8.
std::string new_disagg_id(const sdk::Host& host);

}  // namespace handoff::trtllm
