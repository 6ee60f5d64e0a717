#include "epp/selection/admission_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "tests/unit/epp/selection/test_seed.hpp"

namespace handoff::epp {
namespace {

using std::chrono::seconds;

PolicyClass named(std::string name, std::uint64_t quantum = 1) {
  PolicyClass made;
  made.name = std::move(name);
  made.quantum = quantum;
  made.prefill_busy_threshold_frac = 1.0;
  return made;
}

QueueEntry entry(Ticket ticket, std::size_t class_index = 0, std::uint64_t cost = 1) {
  QueueEntry made;
  made.ticket = ticket;
  made.class_index = class_index;
  made.cost = cost;
  made.raw_isl_tokens = cost;
  return made;
}

std::vector<Ticket> drain(AdmissionQueue& queue) {
  std::vector<Ticket> order;
  while (const auto ticket = queue.pop([](Ticket) { return true; })) order.push_back(*ticket);
  return order;
}

using Order = std::vector<Ticket>;

TEST(QueueScore, IsThePublishedOne) {
  // FCFS: max(0, jump) - arrival; LCFS: max(0, jump) + arrival; WSPT: (1 + max(0, jump)) / cost.
  EXPECT_DOUBLE_EQ(queue_score(QueueOrder::kFcfs, 3.0, 10.0, 100), -7.0);
  EXPECT_DOUBLE_EQ(queue_score(QueueOrder::kFcfs, -3.0, 10.0, 100), -10.0);
  EXPECT_DOUBLE_EQ(queue_score(QueueOrder::kLcfs, 3.0, 10.0, 100), 13.0);
  EXPECT_DOUBLE_EQ(queue_score(QueueOrder::kWspt, 3.0, 10.0, 100), 0.04);
  EXPECT_DOUBLE_EQ(queue_score(QueueOrder::kWspt, -1.0, 10.0, 0), 1.0);
}

TEST(AdmissionQueue, OrdersByStrictPriorityThenDueTimeThenScoreThenArrival) {
  AdmissionQueue queue({named("only", 1000)}, 100);
  const SteadyTime start;
  auto add = [&](Ticket ticket, std::uint32_t strict, std::optional<int> due, double score) {
    QueueEntry made = entry(ticket);
    made.strict_priority = strict;
    if (due) made.deadline = start + seconds(*due);
    made.score = score;
    ASSERT_FALSE(queue.push(made, 1));
  };
  add(1, 0, {}, 5.0);
  add(2, 0, {}, 9.0);
  add(3, 0, {}, 5.0);
  add(4, 0, 20, 0.0);
  add(5, 0, 10, 0.0);
  add(6, 7, {}, 0.0);
  EXPECT_EQ(drain(queue), (Order{6, 5, 4, 2, 1, 3}));
}

TEST(AdmissionQueue, ABlockedHeadHoldsItsLaneOnly) {
  AdmissionQueue queue({named("only", 1000)}, 100);
  ASSERT_FALSE(queue.push(entry(1), 1));
  ASSERT_FALSE(queue.push(entry(2), 1));
  QueueEntry pinned = entry(3);
  pinned.pinned_lane = 4;
  ASSERT_FALSE(queue.push(pinned, 1));
  const auto not_the_first = [](Ticket ticket) { return ticket != 1; };
  EXPECT_EQ(queue.pop(not_the_first), 3u);
  EXPECT_EQ(queue.pop(not_the_first), std::nullopt);
  EXPECT_TRUE(queue.remove(1));
  EXPECT_EQ(queue.pop(not_the_first), 2u);
}

// Quanta 100 and 300 with equal costs of 100: one against three per round.
TEST(AdmissionQueue, SharesByQuantum) {
  AdmissionQueue queue({named("slow", 100), named("fast", 300)}, 100);
  for (Ticket ticket = 1; ticket <= 4; ++ticket) ASSERT_FALSE(queue.push(entry(ticket, 0, 100), 1));
  for (Ticket ticket = 11; ticket <= 17; ++ticket) ASSERT_FALSE(queue.push(entry(ticket, 1, 100), 1));
  EXPECT_EQ(drain(queue), (Order{1, 11, 12, 13, 2, 14, 15, 16, 3, 17, 4}));
}

TEST(AdmissionQueue, ABlockedClassKeepsItsDeficit) {
  AdmissionQueue queue({named("a", 60), named("b", 60)}, 100);
  ASSERT_FALSE(queue.push(entry(1, 0, 100), 1));
  ASSERT_FALSE(queue.push(entry(2, 1, 120), 1));
  ASSERT_FALSE(queue.push(entry(3, 1, 60), 1));
  // Two rounds: a has 120 and pays 100; b stands at 60 when the cursor stays on a.
  EXPECT_EQ(queue.pop([](Ticket) { return true; }), 1u);
  ASSERT_FALSE(queue.push(entry(4, 0, 60), 1));
  EXPECT_EQ(queue.pop([](Ticket ticket) { return ticket == 4; }), 4u);
  // b kept its 60 and needs one more quantum for 120.
  EXPECT_EQ(queue.pop([](Ticket) { return true; }), 2u);
}

TEST(AdmissionQueue, TheCrossingRequestIsTakenTheNextOneIsNot) {
  PolicyClass limited = named("limited");
  limited.request_queue_limit_per_worker = 1;
  limited.raw_isl_token_queue_limit_per_worker = 100;
  limited.cached_token_queue_limit_per_worker = 50;
  auto sized = [](Ticket ticket, std::uint64_t raw, std::uint64_t cached) {
    QueueEntry made = entry(ticket);
    made.raw_isl_tokens = raw;
    made.cached_tokens = cached;
    return made;
  };
  {
    AdmissionQueue queue({limited}, 100);
    EXPECT_FALSE(queue.push(sized(1, 1, 0), 2));
    EXPECT_FALSE(queue.push(sized(2, 1, 0), 2));
    const auto refused = queue.push(sized(3, 1, 0), 2);
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->policy_class, "limited");
    EXPECT_EQ(refused->limit_kind, QueueLimitKind::kRequests);
    EXPECT_EQ(refused->current, 2u);
    EXPECT_EQ(refused->limit, 2u);
    EXPECT_TRUE(queue.remove(1));
    EXPECT_FALSE(queue.push(sized(4, 1, 0), 2));
  }
  {
    AdmissionQueue queue({limited}, 100);
    EXPECT_FALSE(queue.push(sized(1, 500, 0), 2));
    EXPECT_EQ(queue.push(sized(2, 1, 0), 2)->limit_kind, QueueLimitKind::kRawIslTokens);
  }
  {
    AdmissionQueue queue({limited}, 100);
    EXPECT_FALSE(queue.push(sized(1, 60, 120), 2));
    EXPECT_EQ(queue.push(sized(2, 1, 0), 2)->limit_kind, QueueLimitKind::kCachedTokens);
  }
}

TEST(AdmissionQueue, AClassWithAZeroLimitNeverQueues) {
  PolicyClass closed = named("closed");
  closed.request_queue_limit_per_worker = 0;
  AdmissionQueue queue({closed}, 100);
  EXPECT_TRUE(queue.push(entry(1), 8));
  EXPECT_TRUE(queue.empty());
}

TEST(AdmissionQueue, IsBoundedWithoutLimitsToo) {
  AdmissionQueue queue({named("only")}, 2);
  EXPECT_FALSE(queue.push(entry(1), 1));
  EXPECT_FALSE(queue.push(entry(2), 1));
  EXPECT_EQ(queue.push(entry(3), 1)->limit, 2u);
}

TEST(AdmissionQueue, RemovedRequestsAreNotCounted) {
  AdmissionQueue queue({named("only")}, 10);
  ASSERT_FALSE(queue.push(entry(1, 0, 40), 1));
  ASSERT_FALSE(queue.push(entry(2, 0, 2), 1));
  EXPECT_EQ(queue.pending_isl_tokens(), 42u);
  EXPECT_TRUE(queue.remove(1));
  EXPECT_FALSE(queue.remove(1));
  EXPECT_EQ(queue.pending_isl_tokens(), 2u);
  EXPECT_EQ(queue.backlog(0), 1u);
  EXPECT_EQ(drain(queue), Order{2});
  EXPECT_EQ(queue.pending_isl_tokens(), 0u);
}

TEST(AdmissionQueue, GivesUpWhatIsDue) {
  AdmissionQueue queue({named("only")}, 10);
  const SteadyTime start;
  for (Ticket ticket = 1; ticket <= 3; ++ticket) {
    QueueEntry made = entry(ticket);
    if (ticket != 2) made.deadline = start + seconds(static_cast<int>(ticket));
    ASSERT_FALSE(queue.push(made, 1));
  }
  EXPECT_EQ(queue.next_deadline(), start + seconds(1));
  EXPECT_EQ(queue.take_expired(start), Order{});
  EXPECT_EQ(queue.take_expired(start + seconds(1)), Order{1});
  EXPECT_EQ(queue.next_deadline(), start + seconds(3));
  EXPECT_EQ(queue.tickets(), (Order{2, 3}));
}

// The queue as the rules read: plain lists, heads searched by comparing everything, deficits credited one
// round at a time, everything recounted.
class PlainQueue {
 public:
  explicit PlainQueue(std::vector<PolicyClass> classes)
      : classes_(std::move(classes)), deficit_(classes_.size(), 0) {}

  std::optional<QueueLimitKind> push(const QueueEntry& added, std::size_t workers) {
    std::uint64_t requests = 0;
    std::uint64_t raw = 0;
    std::uint64_t cached = 0;
    for (const auto& waiting : waiting_) {
      if (waiting.class_index != added.class_index) continue;
      ++requests;
      raw += waiting.raw_isl_tokens;
      cached += waiting.cached_tokens;
    }
    const PolicyClass& config = classes_[added.class_index];
    const auto reached = [&](std::uint64_t used, const std::optional<std::uint64_t>& limit) {
      return limit && used >= *limit * workers;
    };
    if (reached(requests, config.request_queue_limit_per_worker)) return QueueLimitKind::kRequests;
    if (reached(raw, config.raw_isl_token_queue_limit_per_worker)) return QueueLimitKind::kRawIslTokens;
    if (reached(cached, config.cached_token_queue_limit_per_worker)) return QueueLimitKind::kCachedTokens;
    waiting_.push_back(added);
    return std::nullopt;
  }

  void remove(Ticket ticket) {
    std::erase_if(waiting_, [&](const QueueEntry& waiting) { return waiting.ticket == ticket; });
    reset_empty();
  }

  std::optional<Ticket> pop(const std::set<Ticket>& ready) {
    bool any = false;
    for (std::size_t i = 0; i < classes_.size(); ++i) any = any || head(i, ready) != nullptr;
    if (!any) return std::nullopt;
    for (;;) {
      if (const QueueEntry* first = head(at_, ready)) {
        if (!credited_) deficit_[at_] += classes_[at_].quantum;
        credited_ = true;
        if (first->cost <= deficit_[at_]) {
          deficit_[at_] -= first->cost;
          const Ticket ticket = first->ticket;
          remove(ticket);
          return ticket;
        }
      }
      at_ = (at_ + 1) % classes_.size();
      credited_ = false;
    }
  }

  std::size_t size() const { return waiting_.size(); }
  const std::vector<QueueEntry>& waiting() const { return waiting_; }

 private:
  static bool before(const QueueEntry& a, const QueueEntry& b) {
    if (a.strict_priority != b.strict_priority) return a.strict_priority > b.strict_priority;
    if (a.deadline.has_value() != b.deadline.has_value()) return a.deadline.has_value();
    if (a.deadline && *a.deadline != *b.deadline) return *a.deadline < *b.deadline;
    if (a.score != b.score) return a.score > b.score;
    return a.ticket < b.ticket;
  }

  // The first of each lane that is ready; the best of those.
  const QueueEntry* head(std::size_t class_index, const std::set<Ticket>& ready) const {
    const QueueEntry* best = nullptr;
    for (const auto& candidate : waiting_) {
      if (candidate.class_index != class_index || !ready.contains(candidate.ticket)) continue;
      const bool leads = std::none_of(waiting_.begin(), waiting_.end(), [&](const QueueEntry& other) {
        return other.class_index == class_index && other.pinned_lane == candidate.pinned_lane &&
               other.ticket != candidate.ticket && before(other, candidate);
      });
      if (leads && (best == nullptr || before(candidate, *best))) best = &candidate;
    }
    return best;
  }

  void reset_empty() {
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const bool empty = std::none_of(waiting_.begin(), waiting_.end(),
                                      [&](const QueueEntry& waiting) { return waiting.class_index == i; });
      if (empty) deficit_[i] = 0;
    }
  }

  std::vector<PolicyClass> classes_;
  std::vector<QueueEntry> waiting_;
  std::vector<std::uint64_t> deficit_;
  std::size_t at_ = 0;
  bool credited_ = false;
};

TEST(AdmissionQueue, AgreesWithAPlainQueueOverARandomHistory) {
  test::Random random(test::test_seed());
  for (int history = 0; history < 20; ++history) {
    std::vector<PolicyClass> classes;
    for (std::uint64_t i = 0; i <= random.below(4); ++i) {
      classes.push_back(named(std::to_string(i), 1 + random.below(200)));
      if (random.one_in(3)) classes.back().request_queue_limit_per_worker = random.below(4);
      if (random.one_in(3)) classes.back().raw_isl_token_queue_limit_per_worker = random.below(400);
      if (random.one_in(3)) classes.back().cached_token_queue_limit_per_worker = random.below(200);
    }
    AdmissionQueue queue(classes, 1000);
    PlainQueue plain(classes);
    Ticket next = 1;
    for (int step = 0; step < 1000; ++step) {
      const std::uint64_t what = random.below(10);
      if (what < 5) {
        QueueEntry made = entry(next++, random.below(classes.size()), 1 + random.below(300));
        made.cached_tokens = random.below(100);
        made.strict_priority = static_cast<std::uint32_t>(random.below(3));
        made.score = static_cast<double>(random.below(4));
        if (random.one_in(4)) made.deadline = SteadyTime() + seconds(random.below(5));
        if (random.one_in(3)) made.pinned_lane = static_cast<std::uint32_t>(random.below(3));
        const std::size_t workers = 1 + random.below(5);
        const auto refused = queue.push(made, workers);
        const auto expected = plain.push(made, workers);
        ASSERT_EQ(refused.has_value(), expected.has_value());
        if (refused) {
          ASSERT_EQ(refused->limit_kind, *expected);
        }
      } else if (what < 6 && plain.size() > 0) {
        const Ticket ticket = plain.waiting()[random.below(plain.size())].ticket;
        ASSERT_TRUE(queue.remove(ticket));
        plain.remove(ticket);
      } else {
        std::set<Ticket> ready;
        for (const auto& waiting : plain.waiting()) {
          if (!random.one_in(3)) ready.insert(waiting.ticket);
        }
        const auto actual = queue.pop([&](Ticket ticket) { return ready.contains(ticket); });
        ASSERT_EQ(actual, plain.pop(ready)) << "history " << history << " step " << step;
      }
      ASSERT_EQ(queue.size(), plain.size());
    }
  }
}

}  // namespace
}  // namespace handoff::epp
