#pragma once

#include <string>

namespace handoff::epp {

// How many probes in a row it takes.
struct HealthThresholds {
  unsigned unhealthy_after = 3;
  unsigned healthy_after = 1;
};

// Whether an endpoint counts as healthy, from the outcomes of its probes. Not healthy until proved so. No
// clock, no I/O; one thread.
class HealthTracker {
 public:
  explicit HealthTracker(HealthThresholds thresholds) : thresholds_(thresholds) {}

  // An empty `failure` is a success.
  void on_probe(std::string failure) {
    if (failure.empty()) {
      failures_ = 0;
      if (successes_ < thresholds_.healthy_after) ++successes_;
      if (successes_ >= thresholds_.healthy_after) {
        is_healthy_ = true;
        reason_.clear();
      }
      return;
    }
    successes_ = 0;
    if (failures_ < thresholds_.unhealthy_after) ++failures_;
    if (failures_ >= thresholds_.unhealthy_after) is_healthy_ = false;
    // The first failure of a row is the telling one; a healthy endpoint has no reason to be out.
    if (!is_healthy_ && (failures_ == 1 || reason_.empty() || reason_ == kNotProbed))
      reason_ = std::move(failure);
  }

  bool is_healthy() const { return is_healthy_; }
  // Why not; empty when healthy.
  const std::string& reason() const { return reason_; }

 private:
  static constexpr const char* kNotProbed = "not probed yet";

  HealthThresholds thresholds_;
  unsigned failures_ = 0;
  unsigned successes_ = 0;
  bool is_healthy_ = false;
  std::string reason_ = kNotProbed;
};

}  // namespace handoff::epp
