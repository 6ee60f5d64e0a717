#include "backends/missing_handoff/missing_handoff.hpp"

#include <stdexcept>
#include <string>

namespace handoff::missing_handoff {

Policy read_policy(const sdk::Config& config) {
  const auto value = config.get(sdk::view(kConfigKey.name));
  if (value == "decode-only") return Policy::decode_only;
  if (value == "error") return Policy::error;
  throw std::invalid_argument(std::string(sdk::view(kConfigKey.name)) + " accepts: decode-only, error");
}

void settle(Policy policy, const Finding& finding, const sdk::Host& host,
            std::span<const handoff_header> headers, sdk::Turn& turn) {
  host.warn(finding.reason, finding.cause);
  host.count(finding.reason);
  if (policy == Policy::decode_only) {
    turn.decode_only(finding.reason, headers);
    return;
  }
  turn.fail({.status = 502,
             .code = "missing_prefill_handoff",
             .message = "The prefill engine answered without a handoff.",
             .leg = finding.leg});
}

}  // namespace handoff::missing_handoff
