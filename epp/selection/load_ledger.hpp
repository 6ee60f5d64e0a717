#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "epp/selection/active_blocks.hpp"
#include "epp/selection/selection.hpp"

namespace handoff::epp {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};

// What a booking puts on its rank.
struct BookingLoad {
  std::uint64_t prefill_tokens = 0;  // pending; 0 = none
  // How long the rank is expected to compute them; absent: not modelled.
  std::optional<std::chrono::nanoseconds> prefill_duration = std::nullopt;
  std::span<const std::uint64_t> sequence_hashes;  // shared blocks; copied
  std::uint64_t unshared_blocks = 0;
  std::uint64_t isl_tokens = 0;
  std::uint32_t block_size = 1;
  std::optional<std::uint32_t> expected_output_tokens;
  bool tracks_blocks = true;
};

struct Booking {
  std::uint64_t attempt = 0;  // the owner's to give
  SelectionFacts facts;
  std::shared_ptr<const WorkerRecord> worker;
  std::weak_ptr<const void> lease;                      // of the answers that brought one
  std::weak_ptr<const void> holder;                     // as the request named it
  std::vector<std::weak_ptr<const void>> more_holders;  // of further calls for the id
  bool has_holder = false;                              // named by its request; nobody else knows the id
  // Since when nobody holds its lease, as far as a sweep saw; progress reports restart it.
  std::optional<SteadyTime> orphaned_at;

  ActiveBlocks::Slot slot = 0;
  ActiveBlocks::Node* terminal = nullptr;
  std::uint64_t prefill_tokens = 0;
  std::optional<std::chrono::nanoseconds> prefill_duration;
  std::uint64_t unshared_blocks = 0;
  std::uint64_t output_blocks = 0;
  std::uint64_t output_weight = 0;  // fixed point, like ActiveBlocks'
  std::uint64_t fraction = ActiveBlocks::kWholeBlock;
  std::uint64_t output_tokens = 0;
  std::uint64_t isl_tokens = 0;
  std::uint32_t block_size = 1;
  std::optional<std::uint32_t> expected_output_tokens;
  bool tracks_blocks = true;

  const std::string* id = nullptr;  // the key under which the ledger keeps it
  Booking* older = nullptr;
  Booking* newer = nullptr;
  Booking* prefill_before = nullptr;  // the rank's pending prefills, in the order they came
  Booking* prefill_after = nullptr;

  bool is_held() const {
    const auto lives = [](const std::weak_ptr<const void>& one) { return !one.expired(); };
    return lives(lease) || lives(holder) || std::any_of(more_holders.begin(), more_holders.end(), lives);
  }
  // False: more than kMaxHolders live ones hold it already.
  bool add_holder(const std::weak_ptr<const void>& one);
  static constexpr std::size_t kMaxHolders = 16;
};

// The live reservations of one partition and the load they add up to. All sums are integers (block weights
// are fixed point), so that they are exactly zero when the last booking is gone.
//
// Prefill that is modelled melts away as time passes: the rank's oldest pending prefill is the anchor, and by
// the share of its expected duration that has gone by since it became the oldest, its tokens count as done.
// When all pending prefills of the rank are modelled, what the anchor is over its time is taken from the
// others.
//
// Owner: Partition, under its lock.
class LoadLedger {
 public:
  struct RankLoad {
    std::uint64_t active_prefill_tokens = 0;
    std::uint64_t active_decode_blocks = 0;
    std::uint32_t active_requests = 0;
  };

  // With a stride each hash that is handed in stands for so many blocks.
  explicit LoadLedger(std::size_t max_tracked_blocks, std::uint32_t stride = 1)
      : stride_(stride), blocks_(max_tracked_blocks) {}

  // The time that loads are told for, and that bookings and completions happen at. Never goes back.
  void advance(SteadyTime now) { now_ = std::max(now_, now); }

  Booking* find(std::string_view id);
  // `id` must not be booked.
  Booking& book(const std::string& id, ActiveBlocks::Slot slot, const BookingLoad& load);
  void release(Booking& booking);

  // These return whether they changed something.
  bool complete_prefill(Booking& booking);
  // Cumulative; an older report than the last one changes nothing. Counts the blocks crossed since.
  bool report_output(Booking& booking, std::uint64_t output_tokens, bool track_blocks);
  void add_output_blocks(Booking& booking, std::uint64_t count, std::optional<double> decay_fraction);

  RankLoad load(ActiveBlocks::Slot slot) const {
    if (slot >= totals_.size()) return {};
    const SlotTotals& totals = totals_[slot];
    const std::uint64_t weight = blocks_.weight(slot) * stride_ + totals.private_weight;
    constexpr std::uint64_t kHalf = ActiveBlocks::kWholeBlock / 2;
    return {totals.prefill_tokens - computed_tokens(totals), (weight + kHalf) / ActiveBlocks::kWholeBlock,
            totals.requests};
  }
  const ActiveBlocks& blocks() const { return blocks_; }
  std::uint32_t stride() const { return stride_; }
  std::size_t size() const { return bookings_.size(); }

  // Ids of all bookings on a slot; linear in all bookings, when there is one.
  std::vector<std::string> ids_on(ActiveBlocks::Slot slot) const;

  // Looks at up to `count` further bookings, from the oldest on, and returns the ids of those that nobody
  // held for `expiry`. `done` tells that the round reached the newest booking.
  std::vector<std::string> sweep(SteadyTime now, std::chrono::nanoseconds expiry, std::size_t count,
                                 bool& done);

 private:
  struct SlotTotals {
    std::uint64_t prefill_tokens = 0;
    std::uint64_t private_weight = 0;  // unshared and output blocks
    std::uint32_t requests = 0;
    std::uint32_t unmodelled = 0;  // pending prefills without an expected duration
    Booking* first_prefill = nullptr;
    Booking* last_prefill = nullptr;
    SteadyTime anchored_at{};  // since when first_prefill is the first
  };

  std::uint64_t computed_tokens(const SlotTotals& totals) const {
    return totals.first_prefill == nullptr || !totals.first_prefill->prefill_duration ? 0 : modelled(totals);
  }
  std::uint64_t modelled(const SlotTotals& totals) const;
  void append_prefill(SlotTotals& totals, Booking& booking);
  std::uint64_t private_weight(const Booking& booking) const;
  void unlink(Booking& booking);

  const std::uint32_t stride_;
  SteadyTime now_{};
  ActiveBlocks blocks_;
  std::vector<SlotTotals> totals_;
  std::unordered_map<std::string, Booking, TextHash, std::equal_to<>> bookings_;
  Booking* oldest_ = nullptr;
  Booking* newest_ = nullptr;
  Booking* sweep_at_ = nullptr;
};

}  // namespace handoff::epp
