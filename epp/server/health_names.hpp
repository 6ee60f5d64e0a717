#pragma once

#include <array>

namespace handoff::epp {

// Every name that gateways and manifests ask readiness by; a gateway that finds none of its own name takes
// the whole route down (gateway-api-inference-extension #786).
inline constexpr std::array kReadinessNames = {"", "readiness", "inference-extension",
                                               "envoy.service.ext_proc.v3.ExternalProcessor"};
inline constexpr const char* kLivenessName = "liveness";

}  // namespace handoff::epp
