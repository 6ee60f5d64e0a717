#include "lease_table.hpp"

#include <utility>

namespace handoff::mock {
namespace {

constexpr std::size_t kRememberedLeases = 65536;

}  // namespace

const char* pull_outcome_name(PullOutcome outcome) {
  switch (outcome) {
    case PullOutcome::kFresh:
      return "fresh";
    case PullOutcome::kUnknown:
      return "unknown";
    case PullOutcome::kConsumed:
      return "consumed";
    case PullOutcome::kExpired:
      return "expired";
    case PullOutcome::kForeign:
      return "foreign";
    case PullOutcome::kMismatch:
      return "mismatch";
    case PullOutcome::kTimedOut:
      return "timed_out";
    case PullOutcome::kUnreachable:
      return "unreachable";
  }
  return "unreachable";
}

void LeaseTable::pin(const std::string& request_id, Lease lease) {
  ++counters_.created;
  for (const std::int64_t id : lease.blocks) ++pins_[id];
  live_[request_id] = std::move(lease);
}

PullOutcome LeaseTable::pull(const std::string& request_id, const nlohmann::json& block_ids,
                             std::uint64_t prompt_hash, Clock::time_point now) {
  expire(now);
  const auto found = live_.find(request_id);
  if (found == live_.end()) {
    const auto ended = ended_.find(request_id);
    return ended == ended_.end() ? PullOutcome::kUnknown : ended->second;
  }
  const bool same = found->second.block_ids == block_ids && found->second.prompt_hash == prompt_hash;
  // A reader of wrong blocks still sends its completion notice, and P believes it.
  ++counters_.consumed;
  end(found, PullOutcome::kConsumed);
  return same ? PullOutcome::kFresh : PullOutcome::kForeign;
}

bool LeaseTable::release(const std::string& request_id) {
  const auto found = live_.find(request_id);
  if (found == live_.end()) return false;
  ++counters_.released;
  end(found, PullOutcome::kConsumed);
  return true;
}

bool LeaseTable::extend(const std::string& request_id, Clock::time_point until) {
  const auto found = live_.find(request_id);
  if (found == live_.end()) return false;
  found->second.expires = until;
  return true;
}

bool LeaseTable::expire(Clock::time_point now) {
  bool any = false;
  for (auto it = live_.begin(); it != live_.end();) {
    const auto lease = it++;
    if (lease->second.expires > now) continue;
    ++counters_.expired;
    end(lease, PullOutcome::kExpired);
    any = true;
  }
  return any;
}

std::optional<Clock::time_point> LeaseTable::next_expiry() const {
  std::optional<Clock::time_point> next;
  for (const auto& [id, lease] : live_) {
    if (!next || lease.expires < *next) next = lease.expires;
  }
  return next;
}

void LeaseTable::drop_all() {
  for (const auto& [id, lease] : live_) pool_.release(lease.blocks);
  live_.clear();
  pins_.clear();
}

void LeaseTable::end(Live::iterator lease, PullOutcome why) {
  pool_.release(lease->second.blocks);
  for (const std::int64_t id : lease->second.blocks) {
    const auto pin = pins_.find(id);
    if (--pin->second == 0) pins_.erase(pin);
  }
  if (ended_.emplace(lease->first, why).second) ended_order_.push_back(lease->first);
  if (ended_order_.size() > kRememberedLeases) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  live_.erase(lease);
}

}  // namespace handoff::mock
