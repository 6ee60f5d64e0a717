#include "latencies.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>

namespace bench {

void Latencies::add(std::uint64_t nanoseconds) {
  if (values_.size() >= kCapacity) return;
  values_.push_back(static_cast<std::uint32_t>(
      std::min<std::uint64_t>(nanoseconds, std::numeric_limits<std::uint32_t>::max())));
}

std::string Latencies::json_members() {
  std::sort(values_.begin(), values_.end());
  const auto at = [this](double share) {
    if (values_.empty()) return 0.0;
    const auto index = static_cast<std::size_t>(share * static_cast<double>(values_.size()));
    return values_[std::min(index, values_.size() - 1)] / 1000.0;
  };
  const double sum = std::accumulate(values_.begin(), values_.end(), 0.0);
  const double mean = values_.empty() ? 0.0 : sum / static_cast<double>(values_.size()) / 1000.0;
  char text[256];
  std::snprintf(text, sizeof text,
                R"("mean_us":%.2f,"p50_us":%.2f,"p90_us":%.2f,"p99_us":%.2f,"p999_us":%.2f,"max_us":%.2f)",
                mean, at(0.5), at(0.9), at(0.99), at(0.999), at(1.0));
  return text;
}

}  // namespace bench
