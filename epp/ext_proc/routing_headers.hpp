#pragma once

#include <span>
#include <string_view>

namespace handoff::epp {

inline constexpr std::string_view kDestinationHeader = "x-gateway-destination-endpoint";
inline constexpr std::string_view kDestinationNamespace = "envoy.lb";
inline constexpr std::string_view kServedKey = "x-gateway-destination-endpoint-served";
inline constexpr std::string_view kSubsetNamespace = "envoy.lb.subset_hint";
inline constexpr std::string_view kSubsetKey = "x-gateway-destination-endpoint-subset";
inline constexpr std::string_view kPrefillHeader = "x-prefiller-host-port";
inline constexpr std::string_view kRankHeader = "x-dynamo-dp-rank";
inline constexpr std::string_view kPrefillRankHeader = "x-dynamo-prefill-dp-rank";
inline constexpr std::string_view kEngineRankHeader = "x-data-parallel-rank";

// Headers that only the gateway and the Endpoint Picker may set. A client's copy would steer engines or leak
// control data, so they are removed from every request unless the answer sets them itself.
std::span<const std::string_view> controlled_headers();
// Those of them that an answer may set itself.
std::span<const std::string_view> settable_headers();

}  // namespace handoff::epp
