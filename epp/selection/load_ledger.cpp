#include "epp/selection/load_ledger.hpp"

#include <algorithm>
#include <cmath>

namespace handoff::epp {
namespace {

std::uint64_t to_fixed(double fraction) {
  return static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(ActiveBlocks::kWholeBlock)));
}

}  // namespace

bool Booking::add_holder(const std::weak_ptr<const void>& one) {
  const auto is_same = [&](const std::weak_ptr<const void>& other) {
    return !one.owner_before(other) && !other.owner_before(one);
  };
  if (holder.expired()) {
    holder = one;
    return true;
  }
  std::erase_if(more_holders, [](const auto& other) { return other.expired(); });
  if (is_same(holder) || std::any_of(more_holders.begin(), more_holders.end(), is_same)) return true;
  if (more_holders.size() + 1 >= kMaxHolders) return false;
  more_holders.push_back(one);
  return true;
}

Booking* LoadLedger::find(std::string_view id) {
  const auto found = bookings_.find(id);
  return found == bookings_.end() ? nullptr : &found->second;
}

Booking& LoadLedger::book(const std::string& id, ActiveBlocks::Slot slot, const BookingLoad& load) {
  const auto [entry, inserted] = bookings_.try_emplace(id);
  Booking& booking = entry->second;
  booking.id = &entry->first;
  booking.slot = slot;
  booking.prefill_tokens = load.prefill_tokens;
  booking.prefill_duration = load.prefill_duration;
  booking.unshared_blocks = load.unshared_blocks;
  booking.isl_tokens = load.isl_tokens;
  booking.block_size = load.block_size;
  booking.expected_output_tokens = load.expected_output_tokens;
  booking.tracks_blocks = load.tracks_blocks;
  booking.terminal = blocks_.acquire(slot, load.sequence_hashes);
  if (booking.terminal == nullptr) booking.unshared_blocks += load.sequence_hashes.size() * stride_;

  if (slot >= totals_.size()) totals_.resize(slot + 1);
  if (booking.prefill_tokens > 0) append_prefill(totals_[slot], booking);
  totals_[slot].private_weight += private_weight(booking);
  ++totals_[slot].requests;

  booking.older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = &booking;
  newest_ = &booking;
  return booking;
}

void LoadLedger::release(Booking& booking) {
  complete_prefill(booking);
  SlotTotals& totals = totals_[booking.slot];
  totals.private_weight -= private_weight(booking);
  --totals.requests;
  blocks_.release(booking.slot, booking.terminal, booking.fraction);
  unlink(booking);
  bookings_.erase(bookings_.find(*booking.id));
}

void LoadLedger::unlink(Booking& booking) {
  if (sweep_at_ == &booking) sweep_at_ = booking.newer;
  (booking.older != nullptr ? booking.older->newer : oldest_) = booking.newer;
  (booking.newer != nullptr ? booking.newer->older : newest_) = booking.older;
}

void LoadLedger::append_prefill(SlotTotals& totals, Booking& booking) {
  totals.prefill_tokens += booking.prefill_tokens;
  if (!booking.prefill_duration) ++totals.unmodelled;
  booking.prefill_before = totals.last_prefill;
  if (totals.last_prefill != nullptr) {
    totals.last_prefill->prefill_after = &booking;
  } else {
    totals.first_prefill = &booking;
    totals.anchored_at = now_;
  }
  totals.last_prefill = &booking;
}

bool LoadLedger::complete_prefill(Booking& booking) {
  if (booking.prefill_tokens == 0) return false;
  SlotTotals& totals = totals_[booking.slot];
  totals.prefill_tokens -= booking.prefill_tokens;
  booking.prefill_tokens = 0;
  if (!booking.prefill_duration) --totals.unmodelled;
  if (booking.prefill_before != nullptr) {
    booking.prefill_before->prefill_after = booking.prefill_after;
  } else {
    totals.first_prefill = booking.prefill_after;
    totals.anchored_at = now_;
  }
  (booking.prefill_after != nullptr ? booking.prefill_after->prefill_before : totals.last_prefill) =
      booking.prefill_before;
  return true;
}

std::uint64_t LoadLedger::modelled(const SlotTotals& totals) const {
  const Booking& anchor = *totals.first_prefill;
  const std::uint64_t most = totals.unmodelled == 0 ? totals.prefill_tokens : anchor.prefill_tokens;
  if (anchor.prefill_duration->count() <= 0) return anchor.prefill_tokens;
  // Multiplied first: a quotient of seconds is seldom exact, and would lose a token where the share is.
  const std::chrono::nanoseconds elapsed = now_ - totals.anchored_at;
  const double computed =
      std::floor(static_cast<double>(elapsed.count()) * static_cast<double>(anchor.prefill_tokens) /
                 static_cast<double>(anchor.prefill_duration->count()));
  return computed >= static_cast<double>(most) ? most : static_cast<std::uint64_t>(computed);
}

bool LoadLedger::report_output(Booking& booking, std::uint64_t output_tokens, bool track_blocks) {
  if (output_tokens <= booking.output_tokens) return false;
  booking.output_tokens = output_tokens;
  if (!track_blocks || !booking.tracks_blocks) return true;
  // The prompt's blocks are the complete ones, so output tokens first fill the block it left open.
  const std::uint64_t crossed =
      (booking.isl_tokens % booking.block_size + output_tokens) / booking.block_size;
  if (crossed <= booking.output_blocks) return true;
  std::optional<double> decay;
  if (booking.expected_output_tokens && *booking.expected_output_tokens > 0) {
    decay = std::max(
        0.0, 1.0 - static_cast<double>(output_tokens) / static_cast<double>(*booking.expected_output_tokens));
  }
  add_output_blocks(booking, crossed - booking.output_blocks, decay);
  return true;
}

void LoadLedger::add_output_blocks(Booking& booking, std::uint64_t count,
                                   std::optional<double> decay_fraction) {
  std::uint64_t& total = totals_[booking.slot].private_weight;
  total -= private_weight(booking);
  booking.output_blocks += count;
  booking.output_weight += count * ActiveBlocks::kWholeBlock;
  if (decay_fraction) {
    const std::uint64_t fraction = to_fixed(*decay_fraction);
    booking.output_weight = booking.output_blocks * fraction;
    blocks_.set_fraction(booking.slot, booking.terminal, booking.fraction, fraction);
    booking.fraction = fraction;
  }
  total += private_weight(booking);
}

std::uint64_t LoadLedger::private_weight(const Booking& booking) const {
  return booking.unshared_blocks * booking.fraction + booking.output_weight;
}

std::vector<std::string> LoadLedger::ids_on(ActiveBlocks::Slot slot) const {
  std::vector<std::string> ids;
  const std::size_t count = slot < totals_.size() ? totals_[slot].requests : 0;
  for (const Booking* booking = oldest_; booking != nullptr && ids.size() < count; booking = booking->newer) {
    if (booking->slot == slot) ids.push_back(*booking->id);
  }
  return ids;
}

std::vector<std::string> LoadLedger::sweep(SteadyTime now, std::chrono::nanoseconds expiry, std::size_t count,
                                           bool& done) {
  std::vector<std::string> expired;
  Booking* booking = sweep_at_ != nullptr ? sweep_at_ : oldest_;
  for (; booking != nullptr && count > 0; booking = booking->newer, --count) {
    if (booking->is_held()) {
      booking->orphaned_at.reset();
    } else if (!booking->orphaned_at) {
      // Counted from here and not from the last sweep: rather late than early.
      booking->orphaned_at = now;
    } else if (now - *booking->orphaned_at >= expiry) {
      expired.push_back(*booking->id);
    }
  }
  done = booking == nullptr;
  sweep_at_ = booking;
  return expired;
}

}  // namespace handoff::epp
