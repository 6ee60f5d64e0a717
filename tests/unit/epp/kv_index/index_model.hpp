#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_index.hpp"

namespace handoff::epp::test {

// What the reference says an index does, in the plainest way: sets of prefixes, and per rank a map of the
// engine's hashes. Predictions expire exactly; the real index may keep them a quarter longer, so tests look
// only where both must agree.
class IndexModel {
 public:
  using Prefix = std::uint64_t;  // a sequence hash
  struct Depths {
    std::uint32_t device = 0, host = 0, disk = 0, external = 0;
    friend bool operator==(const Depths&, const Depths&) = default;
  };

  void add_rank(WorkerRank rank) { ranks_[rank]; }
  void remove_rank(WorkerRank rank) { ranks_.erase(rank); }
  void clear_rank(WorkerRank rank) {
    if (ranks_.count(rank) != 0) ranks_[rank] = Rank{};
  }

  StoreOutcome store(WorkerRank rank, Tier tier, const StoredBlocks& blocks) {
    if (blocks.engine_hashes.size() != blocks.local_hashes.size()) return StoreOutcome::malformed;
    std::set<std::uint64_t> distinct(blocks.engine_hashes.begin(), blocks.engine_hashes.end());
    if (blocks.parent_engine_hash) distinct.insert(*blocks.parent_engine_hash);
    if (distinct.size() != blocks.engine_hashes.size() + (blocks.parent_engine_hash ? 1 : 0))
      return StoreOutcome::malformed;
    const auto found = ranks_.find(rank);
    if (found == ranks_.end()) return StoreOutcome::unknown_rank;
    Rank& mine = found->second;
    std::optional<Prefix> prefix;
    if (blocks.parent_engine_hash) {
      const auto parent = mine.prefix_of.find(*blocks.parent_engine_hash);
      if (parent == mine.prefix_of.end()) return StoreOutcome::unknown_parent;
      prefix = parent->second;
    }
    bool news = false;
    for (std::size_t i = 0; i < blocks.engine_hashes.size(); ++i) {
      const std::uint64_t local = blocks.local_hashes[i];
      prefix = prefix ? chain_hash(*prefix, local) : local;
      mine.prefix_of[blocks.engine_hashes[i]] = *prefix;
      news |= mine.tiers[static_cast<std::size_t>(tier)].insert(*prefix).second;
    }
    return news ? StoreOutcome::applied : StoreOutcome::already_stored;
  }

  std::size_t copy(WorkerRank rank, Tier tier, const std::vector<std::uint64_t>& hashes) {
    std::size_t known = 0;
    for (const std::uint64_t hash : hashes) {
      if (const auto prefix = lookup(rank, hash)) {
        ranks_[rank].tiers[static_cast<std::size_t>(tier)].insert(*prefix);
        ++known;
      }
    }
    return known;
  }

  std::size_t remove(WorkerRank rank, Tier tier, const std::vector<std::uint64_t>& hashes) {
    std::size_t removed = 0;
    for (const std::uint64_t hash : hashes) {
      const auto prefix = lookup(rank, hash);
      if (!prefix) continue;
      Rank& mine = ranks_[rank];
      if (mine.tiers[static_cast<std::size_t>(tier)].erase(*prefix) == 0) continue;
      ++removed;
      const bool elsewhere = std::any_of(mine.tiers.begin(), mine.tiers.end(),
                                         [&](const auto& held) { return held.count(*prefix) != 0; });
      if (!elsewhere) mine.prefix_of.erase(hash);
    }
    return removed;
  }

  std::map<WorkerRank, Depths> match(const std::vector<Prefix>& request) const {
    std::map<WorkerRank, Depths> result;
    for (const auto& [rank, mine] : ranks_) {
      Depths depths;
      std::array<std::uint32_t*, kTierCount> into = {&depths.device, &depths.host, &depths.disk,
                                                     &depths.external};
      std::size_t block = 0;
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        while (block < request.size() && mine.tiers[tier].count(request[block]) != 0) {
          ++*into[tier];
          ++block;
        }
      }
      if (block != 0) result[rank] = depths;
    }
    return result;
  }

  // Distinct blocks that somebody holds.
  std::size_t blocks() const {
    std::set<Prefix> all;
    for (const auto& [rank, mine] : ranks_) {
      for (const auto& tier : mine.tiers) all.insert(tier.begin(), tier.end());
    }
    return all.size();
  }

 private:
  struct Rank {
    std::array<std::set<Prefix>, kTierCount> tiers;
    std::map<std::uint64_t, Prefix> prefix_of;
  };

  std::optional<Prefix> lookup(WorkerRank rank, std::uint64_t hash) const {
    const auto mine = ranks_.find(rank);
    if (mine == ranks_.end()) return std::nullopt;
    const auto prefix = mine->second.prefix_of.find(hash);
    if (prefix == mine->second.prefix_of.end()) return std::nullopt;
    return prefix->second;
  }

  std::map<WorkerRank, Rank> ranks_;
};

}  // namespace handoff::epp::test
