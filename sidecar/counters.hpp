// Counters of one loop.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace handoff::sidecar {

/// Named counters, written by one loop's thread and read after it has ended. Names come from small fixed
/// sets; should one not, the number of names is bounded and the rest is counted under "other".
class Counters {
 public:
  void add(std::string_view name, std::uint64_t amount = 1) {
    const auto found = values_.find(name);
    if (found != values_.end()) {
      found->second += amount;
    } else if (values_.size() < kMaxNames) {
      values_.emplace(name, amount);
    } else {
      values_["other"] += amount;
    }
  }
  const std::map<std::string, std::uint64_t, std::less<>>& values() const { return values_; }

 private:
  static constexpr std::size_t kMaxNames = 512;
  std::map<std::string, std::uint64_t, std::less<>> values_;
};

}  // namespace handoff::sidecar
