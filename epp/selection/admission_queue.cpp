#include "epp/selection/admission_queue.hpp"

#include <algorithm>
#include <limits>

namespace handoff::epp {
namespace {

constexpr std::uint32_t kSharedLane = std::numeric_limits<std::uint32_t>::max();

std::uint64_t saturating_add(std::uint64_t left, std::uint64_t right) {
  return left > std::numeric_limits<std::uint64_t>::max() - right ? std::numeric_limits<std::uint64_t>::max()
                                                                  : left + right;
}

std::uint64_t saturating_multiply(std::uint64_t left, std::uint64_t right) {
  if (left == 0 || right == 0) return 0;
  return left > std::numeric_limits<std::uint64_t>::max() / right ? std::numeric_limits<std::uint64_t>::max()
                                                                  : left * right;
}

std::uint32_t lane_of(const QueueEntry& entry) {
  return entry.pinned_lane.value_or(kSharedLane);
}

}  // namespace

double queue_score(QueueOrder order, double priority_jump, double arrival_seconds, std::uint64_t cost) {
  const double jump = std::max(0.0, priority_jump);
  switch (order) {
    case QueueOrder::kFcfs:
      return jump - arrival_seconds;
    case QueueOrder::kLcfs:
      return jump + arrival_seconds;
    case QueueOrder::kWspt:
      return (1.0 + jump) / static_cast<double>(std::max<std::uint64_t>(1, cost));
  }
  return 0.0;
}

bool AdmissionQueue::ServedFirst::operator()(const QueueEntry* left, const QueueEntry* right) const {
  if (left->strict_priority != right->strict_priority) return left->strict_priority > right->strict_priority;
  if (left->deadline != right->deadline) {
    if (!left->deadline || !right->deadline) return left->deadline.has_value();
    return *left->deadline < *right->deadline;
  }
  if (left->score != right->score) return left->score > right->score;
  return left->ticket < right->ticket;
}

AdmissionQueue::AdmissionQueue(std::vector<PolicyClass> classes, std::size_t max_waiting)
    : configs_(std::move(classes)), max_waiting_(max_waiting), classes_(configs_.size()) {}

std::optional<QueueRejection> AdmissionQueue::check_limits(std::size_t class_index,
                                                           std::size_t workers) const {
  const PolicyClass& config = configs_[class_index];
  const ClassState& state = classes_[class_index];
  struct Limit {
    QueueLimitKind kind;
    std::uint64_t current;
    std::optional<std::uint64_t> per_worker;
  };
  const Limit limits[] = {
      {QueueLimitKind::kRequests, state.requests, config.request_queue_limit_per_worker},
      {QueueLimitKind::kRawIslTokens, state.raw_isl_tokens, config.raw_isl_token_queue_limit_per_worker},
      {QueueLimitKind::kCachedTokens, state.cached_tokens, config.cached_token_queue_limit_per_worker},
  };
  for (const Limit& limit : limits) {
    if (!limit.per_worker) continue;
    const std::uint64_t total = saturating_multiply(*limit.per_worker, workers);
    if (limit.current >= total) return QueueRejection{config.name, limit.kind, limit.current, total};
  }
  if (entries_.size() >= max_waiting_) {
    return QueueRejection{config.name, QueueLimitKind::kRequests, entries_.size(), max_waiting_};
  }
  return std::nullopt;
}

std::optional<QueueRejection> AdmissionQueue::push(const QueueEntry& entry, std::size_t workers) {
  if (auto rejection = check_limits(entry.class_index, workers)) return rejection;
  const QueueEntry& stored = entries_.emplace(entry.ticket, entry).first->second;
  ClassState& state = classes_[entry.class_index];
  state.lanes[lane_of(entry)].insert(&stored);
  ++state.requests;
  state.raw_isl_tokens += entry.raw_isl_tokens;
  state.cached_tokens += entry.cached_tokens;
  pending_isl_tokens_ += entry.raw_isl_tokens;
  if (entry.deadline) deadlines_.emplace(*entry.deadline, entry.ticket);
  return std::nullopt;
}

bool AdmissionQueue::remove(Ticket ticket) {
  const auto found = entries_.find(ticket);
  if (found == entries_.end()) return false;
  erase(found->second);
  return true;
}

void AdmissionQueue::erase(const QueueEntry& entry) {
  ClassState& state = classes_[entry.class_index];
  const auto lane = state.lanes.find(lane_of(entry));
  lane->second.erase(&entry);
  if (lane->second.empty()) state.lanes.erase(lane);
  --state.requests;
  state.raw_isl_tokens -= entry.raw_isl_tokens;
  state.cached_tokens -= entry.cached_tokens;
  if (state.requests == 0) state.deficit = 0;
  pending_isl_tokens_ -= entry.raw_isl_tokens;
  if (entry.deadline) deadlines_.erase({*entry.deadline, entry.ticket});
  const Ticket ticket = entry.ticket;  // `entry` lives in the map
  entries_.erase(ticket);
}

const QueueEntry* AdmissionQueue::ready_head(const ClassState& state, const Ready& ready) const {
  const QueueEntry* best = nullptr;
  for (const auto& [number, lane] : state.lanes) {
    const QueueEntry* head = *lane.begin();
    if (best != nullptr && ServedFirst()(best, head)) continue;
    if (ready(head->ticket)) best = head;
  }
  return best;
}

// One visit of every class from the cursor on. A visited class that can dispatch gets its quantum once, then
// serves while it can pay; what it cannot serve yet it keeps. A blocked class keeps its deficit, too.
const QueueEntry* AdmissionQueue::scan_ring(const std::vector<const QueueEntry*>& heads) {
  for (std::size_t visited = 0; visited < classes_.size(); ++visited) {
    ClassState& state = classes_[cursor_];
    const QueueEntry* head = heads[cursor_];
    if (head != nullptr) {
      if (!cursor_credited_) {
        state.deficit = saturating_add(state.deficit, configs_[cursor_].quantum);
        cursor_credited_ = true;
      }
      if (head->cost <= state.deficit) {
        state.deficit -= head->cost;
        return head;
      }
    }
    cursor_ = (cursor_ + 1) % classes_.size();
    cursor_credited_ = false;
  }
  return nullptr;
}

// Gives every dispatchable class the rounds that must pass before the first of them can pay, less the one
// that the next scan gives. The result is that of scanning round by round.
bool AdmissionQueue::fast_forward(const std::vector<const QueueEntry*>& heads) {
  std::optional<std::uint64_t> rounds;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (heads[i] == nullptr) continue;
    const std::uint64_t missing = heads[i]->cost - classes_[i].deficit;
    const std::uint64_t quantum = configs_[i].quantum;
    const std::uint64_t needed = missing / quantum + (missing % quantum != 0 ? 1 : 0);
    rounds = std::min(rounds.value_or(needed), needed);
  }
  if (!rounds) return false;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (heads[i] == nullptr) continue;
    classes_[i].deficit =
        saturating_add(classes_[i].deficit, saturating_multiply(*rounds - 1, configs_[i].quantum));
  }
  return true;
}

std::optional<Ticket> AdmissionQueue::pop(const Ready& ready) {
  if (entries_.empty()) return std::nullopt;
  std::vector<const QueueEntry*> heads(classes_.size(), nullptr);
  bool any = false;
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    heads[i] = ready_head(classes_[i], ready);
    any = any || heads[i] != nullptr;
  }
  // A look that can serve nobody must not move the ring: it would give its class a second quantum.
  if (!any) return std::nullopt;
  const QueueEntry* next = scan_ring(heads);
  if (next == nullptr && fast_forward(heads)) next = scan_ring(heads);
  if (next == nullptr) return std::nullopt;
  const Ticket ticket = next->ticket;
  erase(*next);
  return ticket;
}

std::vector<Ticket> AdmissionQueue::take_expired(SteadyTime now) {
  std::vector<Ticket> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(deadlines_.begin()->second);
    remove(expired.back());
  }
  return expired;
}

std::optional<SteadyTime> AdmissionQueue::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

std::vector<Ticket> AdmissionQueue::tickets() const {
  std::vector<Ticket> all;
  all.reserve(entries_.size());
  for (const auto& [ticket, entry] : entries_) all.push_back(ticket);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace handoff::epp
