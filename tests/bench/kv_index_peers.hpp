#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "epp/kv_index/table_memory.hpp"

// What the index is measured against: the floor (a plain table that can do nothing else) and the usual shape
// of a block index (maps keyed by worker names).
namespace handoff::epp::bench {

// 16-byte entries, linear probing, sized in advance, one thread. Its memory is of the same kind as the
// index's.
class PlainTable {
 public:
  explicit PlainTable(std::size_t slots_log2)
      : mask_((std::size_t{1} << slots_log2) - 1),
        memory_((mask_ + 1) * sizeof(Entry)),
        entries_(static_cast<Entry*>(memory_.data())) {
    for (std::size_t i = 0; i <= mask_; ++i) new (entries_ + i) Entry;
  }

  void insert(std::uint64_t key, std::uint64_t holder) {
    std::size_t at = home(key);
    while (entries_[at].key != 0 && entries_[at].key != key) at = (at + 1) & mask_;
    entries_[at].key = key;
    entries_[at].holders |= std::uint64_t{1} << holder;
  }

  std::uint64_t find(std::uint64_t key) const {
    for (std::size_t at = home(key); entries_[at].key != 0; at = (at + 1) & mask_) {
      if (entries_[at].key == key) return entries_[at].holders;
    }
    return 0;
  }

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::uint64_t holders = 0;
  };
  std::size_t home(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15U >> 20) & mask_; }

  std::size_t mask_;
  TableMemory memory_;
  Entry* entries_;
};

// Block -> names of the workers that hold it; a score is the number of consecutive blocks from the first on.
class StringMapIndex {
 public:
  void store(std::uint64_t block, const std::string& worker) { holders_[block].insert(worker); }

  std::unordered_map<std::string, int> match(const std::vector<std::uint64_t>& request) const {
    std::unordered_map<std::string, int> scores;
    std::unordered_set<std::string> active;
    for (std::size_t i = 0; i < request.size(); ++i) {
      const auto found = holders_.find(request[i]);
      if (found == holders_.end()) break;
      if (i == 0) {
        active = found->second;
      } else {
        std::erase_if(active, [&](const std::string& worker) { return found->second.count(worker) == 0; });
      }
      if (active.empty()) break;
      for (const std::string& worker : active) ++scores[worker];
    }
    return scores;
  }

 private:
  std::unordered_map<std::uint64_t, std::unordered_set<std::string>> holders_;
};

}  // namespace handoff::epp::bench
