#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_index.hpp"
#include "epp/kv_index/kv_batch_sink.hpp"
#include "epp/kv_index/kv_event_codec.hpp"

namespace handoff::epp {

struct KvApplierOptions {
  WorkerRank rank;
  // Ranks of this worker that a batch may name instead of `rank`; others are ignored.
  std::uint32_t first_rank = 0;
  std::uint32_t rank_count = 1;
  std::uint32_t block_size = 0;  // the registered one; events of another size are counted and not indexed
  bool is_eagle = false;
  // Seconds since the epoch, to compare with the engines' time stamps.
  std::function<double()> wall_clock;
};

// Counters, read from any thread.
struct KvApplierCounters {
  using Counter = std::atomic<std::uint64_t>;

  Counter batches{0};
  Counter stored_events{0};
  Counter removed_events{0};
  Counter cleared_events{0};
  Counter copied_blocks{0};  // placeholders: known blocks in another tier
  Counter decode_errors{0};
  Counter unknown_events{0};
  Counter ignored_groups{0};  // not the main attention's cache
  Counter ignored_localities{0};
  Counter ambiguous_salts{0};
  Counter ambiguous_parents{0};
  Counter refused_salts{0};  // stores left out because too many salts or salted blocks are remembered
  Counter wrong_block_sizes{0};
  Counter short_tokens{0};
  Counter unusable_tokens{0};
  Counter orphaned_stores{0};
  Counter rejected_stores{0};
  std::atomic<double> lag_seconds{0};  // engine's time stamp to application, of the last batch
};

// Turns the events of one publisher into changes of the index: hashes token ids the request's way, finds the
// tier, the salt and the adapter, and leaves out what is not prefix cache. Owned by a KvEventFeed; one thread
// at a time. The index outlives it.
class KvEventApplier final : public KvBatchSink {
 public:
  KvEventApplier(BlockIndex& index, KvApplierOptions options);

  KvApplyReport apply(std::span<const std::byte> payload) override;
  void clear() override;

  const KvApplierCounters& counters() const { return counters_; }

 private:
  using SaltId = std::uint32_t;

  void apply_event(const KvEvent& event, WorkerRank rank, KvApplyReport& report);
  void skip_event(const KvEvent& event, WorkerRank rank);
  void store(const KvEvent& event, WorkerRank rank, Tier tier, KvApplyReport& report);
  void remove(const KvEvent& event, WorkerRank rank, Tier tier);
  bool is_main_group(const KvEvent& event, WorkerRank rank);
  std::optional<std::string_view> salt_of(const KvEvent& event, WorkerRank rank, KvApplyReport& report);
  bool has_room_for_salt(std::string_view salt, std::size_t blocks) const;
  void remember_salt(WorkerRank rank, Tier tier, std::span<const std::uint64_t> hashes,
                     std::string_view salt);
  void forget_salt(WorkerRank rank, Tier tier, std::uint64_t hash);
  void release_salt(SaltId id);
  bool hash_blocks(const KvEvent& event, std::string_view salt, KvApplyReport& report);
  void collect_media(const KvEvent& event, std::size_t blocks);
  WorkerRank rank_of(const KvEventBatch& batch) const;
  static void count(KvApplierCounters::Counter& counter, std::uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }

  BlockIndex& index_;
  const KvApplierOptions options_;
  KvApplierCounters counters_;
  KvEventBatch batch_;
  std::vector<std::uint64_t> local_hashes_;
  std::vector<BlockMedia> media_;

  std::set<WorkerRank> touched_;  // to be cleared with `rank`
  // Group -> does it hold the main attention's cache. Learnt, because removals don't always say.
  std::map<std::pair<std::uint32_t, std::uint64_t>, bool> groups_;
  // Salted blocks, for their children: only a prompt's first block carries the salt. Everything else is
  // unsalted.
  struct RankHash {
    std::uint32_t rank;
    std::uint64_t hash;
    friend bool operator==(const RankHash&, const RankHash&) = default;
  };
  struct Hasher {
    std::size_t operator()(const RankHash& key) const {
      return static_cast<std::size_t>((key.hash + key.rank) * secret);
    }
    std::uint64_t secret;
  };
  struct SaltedBlock {
    SaltId salt;
    std::uint32_t tiers;  // bits: where the rank holds it; forgotten with the last
  };
  struct Salt {
    std::string text;
    std::size_t blocks = 0;  // of salt_of_; 0: the place is free
  };
  std::unordered_map<RankHash, SaltedBlock, Hasher> salt_of_;
  std::vector<Salt> salts_;
  std::vector<SaltId> free_salts_;
  std::unordered_map<std::string, SaltId> salt_ids_;
};

// GPU, CPU_PINNED, disk ...: whatever case. Absent and unknown ones are the device.
Tier tier_of_medium(std::string_view medium);

}  // namespace handoff::epp
