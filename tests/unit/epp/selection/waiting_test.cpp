#include <deque>
#include <functional>

#include "tests/unit/epp/selection/selection_fixture.hpp"

namespace handoff::epp {
namespace {

using test::Answer;
using test::seconds;

// Workers of 1000 batch tokens; with threshold 0.5 one is busy above 500 pending prefill tokens.
class WaitingTest : public test::SelectionFixture {
 protected:
  static SelectorConfig queueing(double threshold = 0.5) {
    SelectorConfig config;
    config.router_queue_threshold = threshold;
    return config;
  }
  PendingSelection wait(SelectRequest wanted, Answer& answer) {
    return service->select_and_reserve(std::move(wanted), answer.callback());
  }
  std::uint64_t waiting() { return service->stats().waiting; }
};

TEST_F(WaitingTest, WithoutAThresholdNothingWaits) {
  start();
  add_workers(1);
  for (int i = 0; i < 20; ++i) book(sized(std::to_string(i), 1000));
  EXPECT_EQ(waiting(), 0u);
}

TEST_F(WaitingTest, WaitsWhileEveryWorkerIsBusy) {
  start(queueing());
  add_workers(2);
  book(pinned(sized("a", 501), 1));
  // Exactly at the threshold is not busy.
  book(pinned(sized("b", 500), 2));
  book(sized("c", 100));
  Answer answer;
  const auto pending = wait(sized("d", 100), answer);
  EXPECT_TRUE(pending);
  EXPECT_FALSE(answer.given());
  EXPECT_EQ(service->loads().front().pending_count, 1u);
  EXPECT_EQ(service->loads().front().pending_isl_tokens, 100u);
  clock.advance(seconds(3));
  service->prefill_complete({"a"});
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->facts.rank.worker, 1u);
  EXPECT_EQ(answer->waited, seconds(3));
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(service->stats().queue_wait, seconds(3));
}

TEST_F(WaitingTest, AnAbsoluteThresholdCountsToo) {
  SelectorConfig config;
  config.policy.default_policy_family = "only";
  config.policy.policy_classes = {PolicyClass{.name = "only", .prefill_busy_threshold = 100}};
  start(config);
  add_workers(1);
  book(sized("a", 101));
  Answer answer;
  EXPECT_TRUE(wait(sized("b", 1), answer));
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kApplied);
  EXPECT_TRUE(answer.ok());
}

TEST_F(WaitingTest, ThresholdZeroQueuesAsSoonAsAllHaveAnyTokens) {
  start(queueing(0.0));
  add_workers(1);
  book(sized("a", 1));
  Answer answer;
  EXPECT_TRUE(wait(sized("b", 1), answer));
}

TEST_F(WaitingTest, NobodyPassesABacklog) {
  start(queueing());
  add_workers(2);
  book(pinned(sized("a", 600), 1));
  book(pinned(sized("b", 600), 2));
  // The head may go to worker 1 only, and holds up what may go anywhere.
  SelectRequest head = sized("head", 100);
  head.allowed_workers = {{1}};
  Answer first;
  Answer second;
  wait(head, first);
  wait(sized("second", 100), second);
  service->prefill_complete({"b"});
  EXPECT_FALSE(first.given());
  EXPECT_FALSE(second.given());
  service->prefill_complete({"a"});
  EXPECT_TRUE(first.ok());
  EXPECT_TRUE(second.ok());
}

TEST_F(WaitingTest, PinnedRequestsWaitInTheirOwnLane) {
  start(queueing());
  add_workers(2);
  book(pinned(sized("a", 600), 1));
  book(pinned(sized("b", 600), 2));
  Answer pinned_answer;
  Answer other;
  wait(pinned(sized("pinned", 100), 1), pinned_answer);
  wait(sized("other", 100), other);
  service->prefill_complete({"b"});
  EXPECT_FALSE(pinned_answer.given());
  EXPECT_EQ(other->facts.rank.worker, 2u);
  service->prefill_complete({"a"});
  EXPECT_EQ(pinned_answer->facts.rank.worker, 1u);
}

TEST_F(WaitingTest, AHardSessionWaitsForItsWorker) {
  SelectorConfig config = queueing();
  config.affinity.mode = AffinityMode::kHard;
  start(config);
  add_workers(2);
  SelectRequest wanted = sized("a", 600);
  wanted.session = SessionRef{"s", false};
  const auto home = book(wanted).facts.rank.worker;
  wanted.selection_id = "b";
  Answer answer;
  EXPECT_TRUE(wait(wanted, answer));
  service->prefill_complete({"a"});
  EXPECT_EQ(answer->facts.rank.worker, home);
}

// A session's rank that can't take it any more is no reason to wait for that rank.
TEST_F(WaitingTest, AHardSessionGoesElsewhereWhenItsRankIsLost) {
  SelectorConfig config = queueing();
  config.affinity.mode = AffinityMode::kHard;
  start(config);
  add_workers(2);
  const auto of_session = [](SelectRequest made) {
    made.session = SessionRef{"s"};
    return made;
  };
  book(of_session(pinned(sized("a", 600), 1)));
  Answer answer;
  wait(of_session(sized("b", 100)), answer);
  book(pinned(sized("c", 600), 2));
  service->free_reservation({"c"});
  EXPECT_FALSE(answer.given()) << "its rank is busy, whoever else is not";
  service->mark_worker(1, WorkerCondition::kDraining);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->facts.rank.worker, 2u);
}

TEST_F(WaitingTest, ServesInPolicyOrder) {
  struct Row {
    QueueOrder order;
    std::vector<std::string> served;
  };
  // Arrive 1 s apart: long (300), short (50), urgent jump (100 tokens, jump 10 s), top (strict priority).
  const Row rows[] = {
      {QueueOrder::kFcfs, {"top", "urgent", "long", "short"}},
      {QueueOrder::kLcfs, {"top", "urgent", "short", "long"}},
      {QueueOrder::kWspt, {"top", "urgent", "short", "long"}},  // 11/100, 1/50, 1/300
  };
  for (const Row& row : rows) {
    SelectorConfig config = queueing(0.0);
    config.router_queue_policy = row.order;
    start(config);
    add_workers(1);
    book(sized("blocker", 600));
    std::vector<std::string> served;
    const auto put = [&](std::string id, std::uint64_t isl, double jump, std::uint32_t strict) {
      SelectRequest wanted = sized(id, isl);
      wanted.priority_jump = jump;
      wanted.strict_priority = strict;
      service->select_and_reserve(wanted, [&served, this](Result<Selection> result) {
        served.push_back(result->selection_id);
        leases.push_back(result->lease);
      });
      clock.advance(seconds(1));
    };
    put("long", 300, 0, 0);
    put("short", 50, 0, 0);
    put("urgent", 100, 10, 0);
    put("top", 400, 0, 1);
    service->free_reservation({"blocker"});
    for (std::size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(served.size(), i + 1);
      service->prefill_complete({served.back()});
    }
    EXPECT_EQ(served, row.served);
  }
}

TEST_F(WaitingTest, ClassesShareByDeficitRoundRobin) {
  SelectorConfig config;
  config.policy.default_policy_family = "slow";
  config.policy.policy_classes = {
      PolicyClass{.name = "slow", .quantum = 100, .prefill_busy_threshold = 0},
      PolicyClass{.name = "fast", .quantum = 300, .prefill_busy_threshold = 0},
  };
  start(config);
  add_workers(1);
  book(sized("blocker", 1));
  std::string served;
  std::deque<std::string> ids;
  for (const char* name : {"slow", "fast"}) {
    for (int i = 0; i < 6; ++i) {
      SelectRequest wanted = sized(std::string(name) + std::to_string(i), 100);
      wanted.policy_class = name;
      service->select_and_reserve(wanted, [&, name](Result<Selection> result) {
        served.push_back(*name);
        ids.push_back(result->selection_id);
        leases.push_back(result->lease);
      });
    }
  }
  service->free_reservation({"blocker"});
  for (int i = 0; i < 11; ++i) service->prefill_complete({ids.back()});
  EXPECT_EQ(served, "sfffsfffssss");
}

TEST_F(WaitingTest, ARejectionSaysWhichLimitAndWhereItStood) {
  SelectorConfig config;
  config.policy.default_policy_family = "only";
  config.policy.policy_classes = {
      PolicyClass{.name = "only", .prefill_busy_threshold = 0, .request_queue_limit_per_worker = 1}};
  start(config);
  add_workers(2);
  book(pinned(sized("a", 10), 1));
  book(pinned(sized("b", 10), 2));
  Answer kept[2];
  for (int i = 0; i < 2; ++i) wait(sized("w" + std::to_string(i), 10), kept[i]);
  const auto refused = reserve(sized("x", 10));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, SelectionErrorCode::kQueueRejected);
  EXPECT_EQ(refused.error().rejection->policy_class, "only");
  EXPECT_EQ(refused.error().rejection->limit_kind, QueueLimitKind::kRequests);
  EXPECT_EQ(refused.error().rejection->current, 2u);
  EXPECT_EQ(refused.error().rejection->limit, 2u);
  // The refused id is free again.
  service->free_reservation({"a"});
  service->free_reservation({"b"});
  service->free_reservation({"w0"});
  service->free_reservation({"w1"});
  EXPECT_TRUE(reserve(sized("x", 10)));
}

// Also while nobody is busy, and where no class queues at all.
TEST_F(WaitingTest, AClassWithALimitOfZeroTakesNothing) {
  SelectorConfig config;
  config.policy.default_policy_family = "open";
  config.policy.policy_classes = {PolicyClass{.name = "open"},
                                  PolicyClass{.name = "closed", .request_queue_limit_per_worker = 0},
                                  PolicyClass{.name = "dry", .cached_token_queue_limit_per_worker = 0}};
  start(config);
  add_workers(2);
  for (const char* name : {"closed", "dry"}) {
    SelectRequest wanted = sized(std::string("in-") + name, 10);
    wanted.policy_class = name;
    const auto refused = reserve(wanted);
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code, SelectionErrorCode::kQueueRejected);
    EXPECT_EQ(refused.error().rejection->policy_class, name);
    EXPECT_EQ(refused.error().rejection->limit, 0u);
  }
  EXPECT_TRUE(reserve(sized("in-closed", 10))) << "another class, and the refused id is free again";
}

TEST_F(WaitingTest, ACancelledWaiterLeavesAtOnce) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer first;
  Answer second;
  auto pending = wait(sized("b", 100), first);
  wait(sized("c", 70), second);
  EXPECT_TRUE(pending.cancel());
  EXPECT_EQ(first.times(), 1);
  EXPECT_EQ(first.error(), SelectionErrorCode::kCancelled);
  EXPECT_EQ(service->loads().front().pending_count, 1u);
  EXPECT_EQ(service->loads().front().pending_isl_tokens, 70u);
  EXPECT_FALSE(pending.cancel());
  service->prefill_complete({"a"});
  EXPECT_EQ(first.times(), 1);
  EXPECT_TRUE(second.ok());
  EXPECT_EQ(load(1).active_requests, 2u);
  // Its id was never booked.
  EXPECT_EQ(*service->free_reservation({"b"}), LifecycleOutcome::kRemembered);
}

TEST_F(WaitingTest, CancellingTheHeadLetsTheOthersPass) {
  start(queueing());
  add_workers(2);
  book(pinned(sized("a", 600), 1));
  book(pinned(sized("b", 600), 2));
  SelectRequest head = sized("head", 100);
  head.allowed_workers = {{1}};
  Answer first;
  Answer second;
  auto pending = wait(head, first);
  wait(sized("second", 100), second);
  service->prefill_complete({"b"});
  EXPECT_FALSE(second.given());
  EXPECT_TRUE(pending.cancel());
  EXPECT_TRUE(second.ok());
}

TEST_F(WaitingTest, CancellingAfterTheAnswerChangesNothing) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer answer;
  auto pending = wait(sized("b", 100), answer);
  service->prefill_complete({"a"});
  EXPECT_TRUE(answer.ok());
  EXPECT_FALSE(pending.cancel());
  EXPECT_EQ(load(1).active_requests, 2u);
}

TEST_F(WaitingTest, FreeingAWaitingIdEndsItForGood) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer answer;
  wait(sized("b", 100), answer);
  EXPECT_EQ(*service->free_reservation({"b"}), LifecycleOutcome::kApplied);
  EXPECT_EQ(answer.error(), SelectionErrorCode::kFinished);
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(reserve(sized("b", 100)).error().code, SelectionErrorCode::kFinished);
}

TEST_F(WaitingTest, TheSameIdTwiceInTheQueueIsOneBooking) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer first;
  Answer second;
  Answer third;
  auto pending = wait(sized("b", 100), first);
  wait(sized("b", 100), second);
  wait(sized("b", 100), third);
  EXPECT_EQ(waiting(), 1u);
  EXPECT_TRUE(pending.cancel());
  EXPECT_EQ(waiting(), 1u);
  service->prefill_complete({"a"});
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(third.ok());
  EXPECT_FALSE(second->repeated);
  EXPECT_TRUE(third->repeated);
  EXPECT_EQ(second->attempt, third->attempt);
  EXPECT_EQ(load(1).active_requests, 2u);
}

// A call that joined may allow other workers than the first one; it gets the booking only if that is one of
// them.
TEST_F(WaitingTest, AJoinedCallKeepsItsOwnConstraints) {
  start(queueing());
  add_workers(2);
  book(pinned(sized("a", 600), 1));
  book(pinned(sized("a2", 600), 2));
  Answer first;
  Answer same;
  Answer pinned_elsewhere;
  Answer not_allowed;
  wait(pinned(sized("b", 100), 1), first);
  wait(pinned(sized("b", 100), 1), same);
  wait(pinned(sized("b", 100), 2), pinned_elsewhere);
  SelectRequest narrow = sized("b", 100);
  narrow.allowed_workers = {{2}};
  wait(narrow, not_allowed);
  service->prefill_complete({"a"});
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(same.ok());
  ASSERT_TRUE(pinned_elsewhere.given() && not_allowed.given());
  EXPECT_EQ(pinned_elsewhere.error(), SelectionErrorCode::kConflict);
  EXPECT_EQ(not_allowed.error(), SelectionErrorCode::kConflict);
  EXPECT_EQ(load(1).active_requests, 2u);
}

// When the first of them leaves, the next one's request takes its place: where that may go, not where the
// first one might have gone.
TEST_F(WaitingTest, AJoinedCallIsServedByItsOwnConstraintsWhenTheFirstLeaves) {
  start(queueing());
  add_workers(3);
  for (WorkerId id = 1; id <= 3; ++id) book(pinned(sized("a" + std::to_string(id), 600), id));
  const auto only = [](SelectRequest made, WorkerId id) {
    made.allowed_workers = {{id}};
    return made;
  };
  Answer first;
  Answer second;
  Answer third;
  auto pending = wait(only(sized("b", 100), 1), first);
  auto next = wait(only(sized("b", 100), 2), second);
  wait(pinned(sized("b", 100), 3), third);
  EXPECT_TRUE(pending.cancel());
  EXPECT_EQ(first.error(), SelectionErrorCode::kCancelled);
  service->prefill_complete({"a1"});
  EXPECT_FALSE(second.given());
  EXPECT_TRUE(next.cancel()) << "its handle is good for as long as it waits";
  EXPECT_EQ(waiting(), 1u);
  // The one that is left is pinned, so it waits in another lane now.
  service->prefill_complete({"a3"});
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->facts.rank.worker, 3u);
  EXPECT_FALSE(third->repeated);
  EXPECT_EQ(waiting(), 0u);
}

TEST_F(WaitingTest, AJoinedCallMayGoAtOnceWhenTheFirstLeaves) {
  start(queueing());
  add_workers(2);
  book(pinned(sized("a", 600), 1));
  Answer first;
  Answer second;
  auto pending = wait(pinned(sized("b", 100), 1), first);
  wait(sized("b", 100), second);
  EXPECT_FALSE(second.given());
  EXPECT_TRUE(pending.cancel());
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->facts.rank.worker, 2u);
}

// An error that only the first one's request has is not the others' error.
TEST_F(WaitingTest, AJoinedCallSurvivesTheFirstOnesFailure) {
  start(queueing());
  add_workers(2);
  book(pinned(sized("a", 600), 1));
  book(pinned(sized("a2", 600), 2));
  Answer first;
  Answer second;
  wait(pinned(sized("b", 100), 1), first);
  wait(pinned(sized("b", 100), 2), second);
  service->mark_worker(1, WorkerCondition::kDraining);
  EXPECT_EQ(first.error(), SelectionErrorCode::kNoEligibleWorker);
  EXPECT_FALSE(second.given());
  service->prefill_complete({"a2"});
  ASSERT_TRUE(second.ok());
  // And when all have failed, the id is free again.
  Answer third;
  wait(pinned(sized("c", 100), 2), third);
  ASSERT_TRUE(third.ok());
}

TEST_F(WaitingTest, EveryJoinedCallHasItsOwnDeadline) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  const auto due_in = [&](int wait_seconds) {
    SelectRequest made = sized("b", 100);
    if (wait_seconds > 0) made.queue_deadline = clock.now() + seconds(wait_seconds);
    return made;
  };
  Answer first;
  Answer second;
  Answer third;
  Answer fourth;
  wait(due_in(2), first);
  wait(due_in(1), second);
  wait(due_in(0), third);
  wait(due_in(3), fourth);
  EXPECT_EQ(service->maintain(), clock.now() + seconds(1));
  clock.advance(seconds(1));
  service->maintain();
  EXPECT_EQ(second.error(), SelectionErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(first.given());
  clock.advance(seconds(1));
  EXPECT_EQ(service->maintain(), clock.now() + seconds(1));
  EXPECT_EQ(first.error(), SelectionErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(third.given() || fourth.given());
  clock.advance(seconds(5));
  EXPECT_EQ(service->maintain(), std::nullopt);
  EXPECT_EQ(fourth.error(), SelectionErrorCode::kDeadlineExceeded);
  EXPECT_EQ(service->stats().deadline_exceeded, 3u);
  service->prefill_complete({"a"});
  EXPECT_TRUE(third.ok());
}

TEST_F(WaitingTest, AJoinedCallThatComesTooLateIsTold) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer first;
  Answer second;
  wait(sized("b", 100), first);
  SelectRequest late = sized("b", 100);
  late.queue_deadline = clock.now();
  EXPECT_FALSE(wait(late, second));
  EXPECT_EQ(second.error(), SelectionErrorCode::kDeadlineExceeded);
}

// Whoever of them still lives holds the booking, by the holder it named or by the lease it got.
TEST_F(WaitingTest, ABookingIsHeldByEveryCallerThatLives) {
  start(queueing());
  add_workers(1);
  const auto held = [&](const std::shared_ptr<int>& holder) {
    SelectRequest made = sized("b", 100);
    made.holder = holder;
    return made;
  };
  auto keep = [&](bool expected) {
    for (int i = 0; i < 400; ++i) {
      clock.advance(seconds(1));
      service->maintain();
    }
    EXPECT_EQ(load(1).active_requests, expected ? 1u : 0u);
  };
  book(sized("a", 600));
  auto one = std::make_shared<int>(1);
  auto two = std::make_shared<int>(2);
  auto three = std::make_shared<int>(3);
  Answer first;
  Answer second;
  Answer third;
  auto pending = wait(held(one), first);
  wait(held(two), second);
  wait(held(three), third);
  pending.cancel();
  one.reset();
  service->free_reservation({"a"});
  ASSERT_TRUE(second.ok() && third.ok());
  EXPECT_FALSE(second->lease || third->lease) << "they named their holders";
  keep(true);
  two.reset();
  keep(true);
  auto lease = reserve(sized("b", 100))->lease;
  EXPECT_TRUE(lease);
  three.reset();
  keep(true);
  auto four = std::make_shared<int>(4);
  EXPECT_FALSE(reserve(held(four))->lease);
  lease.reset();
  keep(true);
  four.reset();
  keep(false);
}

TEST_F(WaitingTest, ACallThatNamesAnAttemptNeverMeansAWaitingRequest) {
  SelectorConfig config = queueing();
  config.track_output_blocks = true;
  start(config);
  add_workers(1);
  const auto old = book(sized("b", 100)).attempt;
  service->free_reservation({"b"});
  clock.advance(seconds(200));
  book(sized("a", 600));
  Answer answer;
  wait(sized("b", 100), answer);
  EXPECT_EQ(*service->prefill_complete({"b", old}), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->output_progress({"b", old}, 64), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->add_output_block({"b", old}, std::nullopt), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->free_reservation({"b", old}), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(waiting(), 1u);
  service->free_reservation({"a"});
  ASSERT_TRUE(answer.ok());
  expect_load(1, 100, 6, 1);
}

TEST_F(WaitingTest, EarlyCallsForAWaitingIdApplyToItsBooking) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer answer;
  wait(request("b", hashed({1, 2})), answer);
  EXPECT_EQ(*service->prefill_complete({"b"}), LifecycleOutcome::kRemembered);
  EXPECT_EQ(*service->output_progress({"b"}, 16), LifecycleOutcome::kRemembered);
  service->free_reservation({"a"});
  ASSERT_TRUE(answer.ok());
  expect_load(1, 0, 3, 1);
}

TEST_F(WaitingTest, DeadlinesAreKept) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  const auto due = [&](std::string id, int in_seconds) {
    SelectRequest wanted = sized(std::move(id), 100);
    wanted.queue_deadline = clock.now() + seconds(in_seconds);
    return wanted;
  };
  EXPECT_EQ(reserve(due("late", 0)).error().code, SelectionErrorCode::kDeadlineExceeded);
  Answer five;
  Answer ten;
  wait(due("ten", 10), ten);
  wait(due("five", 5), five);
  EXPECT_EQ(service->maintain(), clock.now() + seconds(5));
  clock.advance(seconds(5));
  EXPECT_EQ(service->maintain(), clock.now() + seconds(5));
  EXPECT_EQ(five.error(), SelectionErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(ten.given());
  // Whoever frees capacity after the deadline does not serve it either.
  clock.advance(seconds(5));
  service->free_reservation({"a"});
  EXPECT_EQ(ten.error(), SelectionErrorCode::kDeadlineExceeded);
  EXPECT_EQ(service->stats().deadline_exceeded, 3u);
  EXPECT_EQ(service->maintain(), std::nullopt);
}

TEST_F(WaitingTest, QuestionsWaitAndAdviceDoesNot) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer question;
  EXPECT_TRUE(service->select(sized("q", 100), question.callback()));
  SelectRequest advice = sized("q", 100);
  advice.advisory = true;
  const auto advised = ask(advice);
  ASSERT_TRUE(advised);
  EXPECT_EQ(advised->load.active_prefill_tokens, 600u);
  EXPECT_EQ(advised->load.prefill_token_capacity, 1000u);
  EXPECT_EQ(advised->prefill_busy, true);
  service->prefill_complete({"a"});
  ASSERT_TRUE(question.ok());
  EXPECT_FALSE(question->booked);
  EXPECT_EQ(question->prefill_busy, false);
  EXPECT_EQ(load(1).active_requests, 1u);
}

TEST_F(WaitingTest, NobodyWaitsForAWorkerThatCannotCome) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  SelectRequest impossible = sized("b", 100);
  impossible.constraints.required_taints = {"none"};
  EXPECT_EQ(reserve(impossible).error().code, SelectionErrorCode::kNoEligibleWorker);
  Answer answer;
  wait(sized("c", 100), answer);
  ASSERT_TRUE(service->delete_worker(1));
  EXPECT_EQ(answer.error(), SelectionErrorCode::kNoEligibleWorker);
}

TEST_F(WaitingTest, ANewWorkerDrainsTheQueue) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer answer;
  wait(sized("b", 100), answer);
  service->upsert_worker(spec(2));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->facts.rank.worker, 2u);
}

TEST_F(WaitingTest, ANewWorkerThatIsNotReadyDrainsNothing) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer answer;
  wait(sized("b", 100), answer);
  service->upsert_worker(spec(2), WorkerCondition::kUnavailable);
  EXPECT_FALSE(answer.given());
  service->mark_worker(2, WorkerCondition::kServing);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->facts.rank.worker, 2u);
}

// Whatever change of the catalog found the answer: no lock of the service is held while it is given, so its
// callback may ask for anything. (A lock that is held shows as a test that does not end.)
TEST_F(WaitingTest, AnswersOfCatalogCallsMayAskTheCatalog) {
  struct Row {
    const char* name;
    std::function<void()> change;
    bool ends_well;
  };
  WorkerPatch bigger;
  bigger.max_num_batched_tokens = 100'000;
  const Row rows[] = {
      {"upsert", [&] { service->upsert_worker(spec(2)); }, true},
      {"upserts", [&] { service->upsert_workers({spec(2)}); }, true},
      {"patch", [&] { service->patch_worker(1, bigger); }, true},
      {"delete", [&] { service->delete_worker(1); }, false},
      {"mark", [&] { service->mark_worker(1, WorkerCondition::kDraining); }, false},
  };
  for (const Row& row : rows) {
    start(queueing());
    add_workers(1);
    book(sized("a", 600));
    int given = 0;
    service->select_and_reserve(sized("b", 100), [&](const Result<Selection>& result) {
      EXPECT_EQ(result.has_value(), row.ends_well) << row.name;
      (void)service->transfer_constraints(1);
      (void)service->ready();
      (void)service->find_worker(1);
      (void)service->list_workers();
      (void)service->loads();
      (void)service->upsert_worker(spec(3));
      ++given;
    });
    EXPECT_EQ(given, 0) << row.name;
    row.change();
    EXPECT_EQ(given, 1) << row.name;
  }
}

TEST_F(WaitingTest, AHoldKeepsAnswersBackUntilItGoes) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer answer;
  wait(sized("b", 100), answer);
  {
    const AnswerHold hold;
    {
      const AnswerHold inner;
      service->free_reservation({"a"});
    }
    EXPECT_FALSE(answer.given());
  }
  EXPECT_TRUE(answer.ok());
}

TEST_F(WaitingTest, LongWaitsLookAtTheIndexAgain) {
  start(queueing());
  add_workers(2);
  book(pinned(sized("a", 600), 1));
  book(pinned(sized("b", 600), 2));
  Answer fresh;
  wait(request("c", hashed({1, 2, 3, 4})), fresh);
  view.set({1, 0}, 4);
  clock.advance(seconds(10));
  const int before = view.matches;
  service->free_reservation({"b"});
  EXPECT_EQ(view.matches, before);
  service->prefill_complete({"c"});
  book(pinned(sized("d", 600), 2));
  view.set({1, 0}, 0);
  Answer refreshed;
  wait(request("e", hashed({1, 2, 3, 4})), refreshed);
  view.set({1, 0}, 4);
  clock.advance(seconds(11));
  service->free_reservation({"a"});
  ASSERT_TRUE(refreshed.ok());
  EXPECT_EQ(refreshed->facts.effective_prefill_tokens, 0u);
}

TEST_F(WaitingTest, ShutdownAnswersAllWhoWait) {
  start(queueing());
  add_workers(1);
  book(sized("a", 600));
  Answer first;
  Answer second;
  wait(sized("b", 100), first);
  auto pending = wait(sized("c", 100), second);
  service->shutdown();
  EXPECT_EQ(first.error(), SelectionErrorCode::kShuttingDown);
  EXPECT_EQ(second.error(), SelectionErrorCode::kShuttingDown);
  // What is booked can still be freed, and a handle may outlive the service.
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kApplied);
  service.reset();
  EXPECT_FALSE(pending.cancel());
}

// Each answer frees its booking inside the callback, which serves the next waiter, 20,000 deep.
TEST_F(WaitingTest, ALongChainOfAnswersDoesNotRecurse) {
  start(queueing(0.0));
  add_workers(1);
  book(sized("blocker", 600));
  int served = 0;
  for (int i = 0; i < 20000; ++i) {
    service->select_and_reserve(sized("w" + std::to_string(i), 1), [&](Result<Selection> result) {
      ++served;
      service->free_reservation({result->selection_id});
    });
  }
  service->free_reservation({"blocker"});
  EXPECT_EQ(served, 20000);
  expect_load(1, 0, 0, 0);
}

}  // namespace
}  // namespace handoff::epp
