#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "epp/selection/selection_error.hpp"
#include "epp/selection/selector_config.hpp"

namespace handoff::epp {

// Grows with arrival; names one waiting request and is its place among equals.
using Ticket = std::uint64_t;

struct QueueEntry {
  Ticket ticket = 0;
  std::size_t class_index = 0;
  // A pinned request waits in a lane of its rank, so that it never blocks requests that can go elsewhere.
  std::optional<std::uint32_t> pinned_lane;
  std::uint32_t strict_priority = 0;
  std::optional<SteadyTime> deadline;
  double score = 0.0;  // see queue_score
  std::uint64_t raw_isl_tokens = 0;
  std::uint64_t cached_tokens = 0;
  std::uint64_t cost = 1;  // uncached tokens, at least 1
};

// FCFS: max(0, jump) - arrival. LCFS: max(0, jump) + arrival. WSPT: (1 + max(0, jump)) / cost. Fixed at
// arrival; the higher goes first.
double queue_score(QueueOrder order, double priority_jump, double arrival_seconds, std::uint64_t cost);

// The waiting requests of one partition: policy classes served by deficit round robin in uncached tokens, and
// inside a class by strict priority, due time, score and arrival.
//
// Owner: Partition, under its lock. Knows nothing of workers: whether a request can go now is asked through
// `Ready`. A removed request is gone at once from order, limits and counts.
class AdmissionQueue {
 public:
  using Ready = std::function<bool(Ticket)>;

  AdmissionQueue(std::vector<PolicyClass> classes, std::size_t max_waiting);

  // Limits are per worker of the partition and looked at before this entry is counted: the request that
  // crosses a limit is still taken, the next one is not.
  std::optional<QueueRejection> push(const QueueEntry& entry, std::size_t workers);
  bool remove(Ticket ticket);

  // The next request that can be dispatched, removed from the queue.
  std::optional<Ticket> pop(const Ready& ready);

  // Removes what was due at `now` or before.
  std::vector<Ticket> take_expired(SteadyTime now);
  std::optional<SteadyTime> next_deadline() const;
  std::vector<Ticket> tickets() const;

  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  std::size_t class_of(Ticket ticket) const { return entries_.at(ticket).class_index; }
  std::size_t backlog(std::size_t class_index) const { return classes_[class_index].requests; }
  std::uint64_t pending_isl_tokens() const { return pending_isl_tokens_; }
  const std::vector<PolicyClass>& classes() const { return configs_; }

 private:
  struct ServedFirst {
    bool operator()(const QueueEntry* left, const QueueEntry* right) const;
  };
  using Lane = std::set<const QueueEntry*, ServedFirst>;

  struct ClassState {
    std::map<std::uint32_t, Lane> lanes;
    std::uint64_t requests = 0;
    std::uint64_t raw_isl_tokens = 0;
    std::uint64_t cached_tokens = 0;
    std::uint64_t deficit = 0;
  };

  std::optional<QueueRejection> check_limits(std::size_t class_index, std::size_t workers) const;
  const QueueEntry* ready_head(const ClassState& state, const Ready& ready) const;
  const QueueEntry* scan_ring(const std::vector<const QueueEntry*>& heads);
  bool fast_forward(const std::vector<const QueueEntry*>& heads);
  void erase(const QueueEntry& entry);

  const std::vector<PolicyClass> configs_;
  const std::size_t max_waiting_;
  std::vector<ClassState> classes_;
  std::unordered_map<Ticket, QueueEntry> entries_;
  std::set<std::pair<SteadyTime, Ticket>> deadlines_;
  std::uint64_t pending_isl_tokens_ = 0;
  std::size_t cursor_ = 0;
  bool cursor_credited_ = false;  // the class at the cursor already got this round's quantum
};

}  // namespace handoff::epp
