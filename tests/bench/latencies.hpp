// Every latency of a run, kept exactly: a run has a few million at most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

class Latencies {
 public:
  Latencies() { values_.reserve(1U << 20U); }

  void add(std::uint64_t nanoseconds);
  void clear() { values_.clear(); }
  std::size_t count() const { return values_.size(); }
  // `"p50_us":1.0,...,"max_us":2.0` without braces. Sorts.
  std::string json_members();

 private:
  static constexpr std::size_t kCapacity = 8U << 20U;  // bounds the memory of an overlong run

  std::vector<std::uint32_t> values_;
};

}  // namespace bench
