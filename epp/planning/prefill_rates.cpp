#include "epp/planning/prefill_rates.hpp"

namespace handoff::epp {
namespace {

// Shorter prompts say more about the way there and back than about prefill.
constexpr std::uint64_t kFewestTokens = 64;
constexpr double kWeightOfNew = 0.2;
constexpr std::size_t kMostWorkers = 16384;

}  // namespace

void PrefillRates::learn(WorkerId worker, std::uint64_t effective_tokens, std::chrono::nanoseconds took) {
  if (effective_tokens < kFewestTokens || took <= std::chrono::nanoseconds(0)) return;
  const double rate = static_cast<double>(effective_tokens) / std::chrono::duration<double>(took).count();
  const std::lock_guard lock(mutex_);
  const auto found = tokens_per_second_.find(worker);
  if (found != tokens_per_second_.end()) {
    found->second += kWeightOfNew * (rate - found->second);
  } else if (tokens_per_second_.size() < kMostWorkers) {
    tokens_per_second_.emplace(worker, rate);
  }
}

std::optional<std::chrono::nanoseconds> PrefillRates::expected(WorkerId worker,
                                                               std::uint64_t effective_tokens) const {
  const std::lock_guard lock(mutex_);
  const auto found = tokens_per_second_.find(worker);
  if (found == tokens_per_second_.end()) return std::nullopt;
  const std::chrono::duration<double> seconds(static_cast<double>(effective_tokens) / found->second);
  constexpr std::chrono::duration<double> kLongest = std::chrono::hours(1);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(seconds < kLongest ? seconds : kLongest);
}

void PrefillRates::forget(WorkerId worker) {
  const std::lock_guard lock(mutex_);
  tokens_per_second_.erase(worker);
}

}  // namespace handoff::epp
