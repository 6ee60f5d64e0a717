// Counters of one loop.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace handoff::sidecar {

/// Counters named by a group and a name within it, such as `decode_only` and `no_prefill_endpoint`. Written
/// by one loop's thread and read after it has ended. Names come from small fixed sets, so looking through a
/// list is quickest; should one not, the number of names is bounded and the rest is counted as `other`.
class Counters {
 public:
  struct Entry {
    std::string group;  // may be empty
    std::string name;
    std::uint64_t value;
  };

  void add(std::string_view name, std::uint64_t amount = 1) { add({}, name, amount); }
  void add(std::string_view group, std::string_view name, std::uint64_t amount = 1) {
    for (auto& entry : entries_) {
      if (entry.name == name && entry.group == group) {
        entry.value += amount;
        return;
      }
    }
    if (entries_.size() < kMaxNames) {
      entries_.push_back({std::string(group), std::string(name), amount});
    } else {
      entries_.back() = {{}, "other", entries_.back().value + amount};
    }
  }
  const std::vector<Entry>& entries() const { return entries_; }
  std::uint64_t value(std::string_view group, std::string_view name) const {
    for (const auto& entry : entries_) {
      if (entry.name == name && entry.group == group) return entry.value;
    }
    return 0;
  }

 private:
  static constexpr std::size_t kMaxNames = 256;
  std::vector<Entry> entries_;
};

}  // namespace handoff::sidecar
