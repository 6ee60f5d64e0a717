#include "shared/telemetry/rate_limited_warning.hpp"

namespace handoff::telemetry {

std::optional<std::uint64_t> RateLimitedWarning::try_pass() {
  const auto since_epoch = std::chrono::duration_cast<std::chrono::nanoseconds>(clock_().time_since_epoch());
  const std::int64_t now = since_epoch.count();
  std::int64_t next = next_.load(std::memory_order_relaxed);
  // Of several threads whose time has come, the one that moves the limit passes.
  if (now < next ||
      !next_.compare_exchange_strong(next, now + interval_.count(), std::memory_order_relaxed)) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  return suppressed_.exchange(0, std::memory_order_relaxed);
}

}  // namespace handoff::telemetry
