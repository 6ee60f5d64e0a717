#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

namespace handoff::telemetry {

/// Lets one warning of a kind through per interval, so that a fault that lasts doesn't fill the log:
///
///     if (const auto suppressed = warning.try_pass()) LogLine(Level::warn, "…").field("suppressed",
///     *suppressed);
///
/// Thread-safe and lock-free; meant to live as long as what it warns about.
class RateLimitedWarning {
 public:
  using Clock = std::chrono::steady_clock::time_point (*)();

  /// `clock` is for tests.
  explicit RateLimitedWarning(std::chrono::milliseconds interval,
                              Clock clock = std::chrono::steady_clock::now)
      : interval_(interval), clock_(clock) {}

  /// How many were held back since the last one that passed, when this one may pass; nothing when it may not.
  std::optional<std::uint64_t> try_pass();

  /// The episode is over: the next warning passes at once.
  void end_episode() { next_.store(kAtOnce, std::memory_order_relaxed); }

 private:
  static constexpr std::int64_t kAtOnce = std::numeric_limits<std::int64_t>::min();

  std::chrono::nanoseconds interval_;
  Clock clock_;
  std::atomic<std::int64_t> next_{kAtOnce};  ///< nanoseconds of the clock
  std::atomic<std::uint64_t> suppressed_{0};
};

}  // namespace handoff::telemetry
