// P's side of a handoff: blocks that stay pinned after a prefill until somebody takes them or the lease ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>

#include "block_pool.hpp"

namespace handoff::mock {

using Clock = std::chrono::steady_clock;

// What D is told about the handoff it holds.
enum class PullOutcome {
  kFresh,
  kUnknown,
  kConsumed,
  kExpired,
  kForeign,
  kMismatch,
  kTimedOut,  // the other leg did not come
  kUnreachable
};

const char* pull_outcome_name(PullOutcome outcome);

struct LeaseCounters {
  std::int64_t created = 0;
  std::int64_t consumed = 0;
  std::int64_t expired = 0;
  std::int64_t released = 0;
};

// Owned by Engine, used from its single thread. Time is passed in, so tests need no clock. Ended leases are
// remembered (a bounded number of them) to tell a second use from an unknown id.
class LeaseTable {
 public:
  struct Lease {
    BlockIds blocks;
    nlohmann::json block_ids;  // as sent in the reply, compared with what D brings back
    std::uint64_t prompt_hash = 0;
    Clock::time_point expires;
  };

  explicit LeaseTable(BlockPool& pool) : pool_(pool) {}

  void pin(const std::string& request_id, Lease lease);
  PullOutcome pull(const std::string& request_id, const nlohmann::json& block_ids, std::uint64_t prompt_hash,
                   Clock::time_point now);
  // D's completion notice without a read. True when a live lease was freed.
  bool release(const std::string& request_id);
  // True when a live lease was extended.
  bool extend(const std::string& request_id, Clock::time_point until);
  // Frees what has run out; true when anything was freed.
  bool expire(Clock::time_point now);
  std::optional<Clock::time_point> next_expiry() const;
  void drop_all();
  void reset_counters() { counters_ = {}; }

  bool is_live(const std::string& request_id) const { return live_.contains(request_id); }
  std::int64_t live() const { return static_cast<std::int64_t>(live_.size()); }
  std::int64_t pinned_blocks() const { return static_cast<std::int64_t>(pins_.size()); }
  const LeaseCounters& counters() const { return counters_; }

 private:
  using Live = std::unordered_map<std::string, Lease>;

  void end(Live::iterator lease, PullOutcome why);

  BlockPool& pool_;
  Live live_;
  std::unordered_map<std::string, PullOutcome> ended_;
  std::deque<std::string> ended_order_;
  // Leases of prompts with a common prefix share its blocks.
  std::unordered_map<std::int64_t, std::int64_t> pins_;
  LeaseCounters counters_;
};

}  // namespace handoff::mock
