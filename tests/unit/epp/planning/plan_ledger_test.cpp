#include "epp/planning/plan_ledger.hpp"

#include "planning_fixture.hpp"

namespace handoff::epp {
namespace {

class PlanLedgerTest : public PlanningFixture {
 protected:
  static SelectRequest request(std::uint64_t tokens = 160) {
    SelectRequest made;
    made.model_name = "m";
    made.prompt = SizedPrompt{tokens};
    return made;
  }
  std::vector<Plan::Wish> pair(bool may_lack_prefill = false) {
    std::vector<Plan::Wish> round(2);
    round[0] = {.leg = Leg::kDestination, .service = destination.get(), .request = request()};
    round[1] = {.leg = Leg::kPrefill,
                .service = prefill.get(),
                .request = request(),
                .may_lack_workers = may_lack_prefill};
    return round;
  }
  class Note final : public BookingListener {
   public:
    explicit Note(PlanLedgerTest& test) : test_(test) {}
    void on_booked(BookingOutcome outcome) override {
      ++test_.answers;
      test_.failure = std::move(outcome);
    }

   private:
    PlanLedgerTest& test_;
  };
  void reserve(const std::shared_ptr<Plan>& plan, std::vector<Plan::Wish> round) {
    plan->reserve(round, std::make_shared<Note>(*this));
  }
  // One prefill worker that is busy: the next prefill booking waits.
  void start_with_busy_prefill() {
    prefill_queue_threshold = 0.5;
    config.max_num_batched_tokens = 100;
    start();
    add_prefill("p", 1);
    add_decode("d", 2);
    busy = ledger.open("busy");
    std::vector<Plan::Wish> round(1);
    round[0] = {.leg = Leg::kPrefill, .service = prefill.get(), .request = request()};
    reserve(busy, std::move(round));
    answers = 0;
    ASSERT_EQ(live(prefill), 1U);
  }

  int answers = 0;
  BookingOutcome failure;
  std::shared_ptr<Plan> busy;
};

TEST_F(PlanLedgerTest, BooksBothLegsUnderOneId) {
  start();
  add_prefill("p", 1);
  add_decode("d", 2);
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  EXPECT_EQ(answers, 1);
  EXPECT_FALSE(failure);
  EXPECT_EQ(plan->state(), PlanState::kReserved);
  EXPECT_EQ(plan->booking(Leg::kPrefill)->selection_id, "x/p");
  EXPECT_EQ(plan->booking(Leg::kDestination)->selection_id, "x/d");
  EXPECT_EQ(prefill_tokens(), 160U);
  EXPECT_EQ(decode_blocks(), 10U);
  EXPECT_TRUE(plan->publish());
  EXPECT_FALSE(plan->publish());
  EXPECT_TRUE(plan->release_prefill());
  EXPECT_FALSE(plan->release_prefill());
  EXPECT_EQ(prefill_tokens(), 0U);
  EXPECT_EQ(decode_blocks(), 10U);
  EXPECT_EQ(plan->booking(Leg::kPrefill), nullptr);
  EXPECT_TRUE(plan->close());
  EXPECT_FALSE(plan->close());
  EXPECT_EQ(decode_blocks(), 0U);
  EXPECT_EQ(live(destination), 0U);
  EXPECT_EQ(ledger.open_plans(), 0U);
  EXPECT_EQ(ledger.counts().compensated, 0U);
}

TEST_F(PlanLedgerTest, FreesTheDestinationWhenThereIsNoPrefillWorker) {
  start();
  add_decode("d", 2);
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  EXPECT_EQ(answers, 1);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->leg, Leg::kPrefill);
  EXPECT_EQ(failure->error.code, SelectionErrorCode::kNotReady);
  EXPECT_EQ(plan->state(), PlanState::kClosed);
  EXPECT_EQ(live(destination), 0U);
  EXPECT_FALSE(plan->publish());
  EXPECT_EQ(ledger.counts().compensated, 1U);
}

TEST_F(PlanLedgerTest, DoesNotBookPrefillWhenThereIsNoDestination) {
  start();
  add_prefill("p", 1);
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->leg, Leg::kDestination);
  EXPECT_EQ(live(prefill), 0U);
  EXPECT_EQ(prefill->stats().bookings, 0U);
}

TEST_F(PlanLedgerTest, GoesOnWithoutPrefillWhereThatIsAllowed) {
  start();
  add_decode("d", 2);
  const auto plan = ledger.open("x");
  reserve(plan, pair(true));
  EXPECT_EQ(answers, 1);
  EXPECT_FALSE(failure);
  EXPECT_EQ(plan->state(), PlanState::kReserved);
  EXPECT_EQ(plan->booking(Leg::kPrefill), nullptr);
  EXPECT_NE(plan->booking(Leg::kDestination), nullptr);
}

TEST_F(PlanLedgerTest, WaitsForBothLegs) {
  start_with_busy_prefill();
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  EXPECT_EQ(answers, 0);
  EXPECT_EQ(plan->state(), PlanState::kReserving);
  EXPECT_FALSE(plan->publish()) << "half a plan";
  busy->close();
  EXPECT_EQ(answers, 1);
  EXPECT_EQ(plan->state(), PlanState::kReserved);
}

TEST_F(PlanLedgerTest, CancelsTheWaitingLegAndFreesTheOther) {
  start_with_busy_prefill();
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  EXPECT_EQ(live(destination), 1U);
  EXPECT_TRUE(plan->close());
  EXPECT_EQ(answers, 0) << "whoever closes needs no answer";
  EXPECT_EQ(live(destination), 0U);
  EXPECT_EQ(prefill->stats().waiting, 0U);
  busy->close();
  EXPECT_EQ(live(prefill), 0U);
}

TEST_F(PlanLedgerTest, FailsAsAWholeAtTheDeadlineOfOneLeg) {
  start_with_busy_prefill();
  const auto plan = ledger.open("x");
  auto round = pair();
  round[1].request.queue_deadline = now + std::chrono::seconds(1);
  reserve(plan, std::move(round));
  EXPECT_EQ(answers, 0);
  now += std::chrono::seconds(2);
  prefill->maintain();
  EXPECT_EQ(answers, 1);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->error.code, SelectionErrorCode::kDeadlineExceeded);
  EXPECT_EQ(live(destination), 0U);
}

TEST_F(PlanLedgerTest, ClosesWhenItsLastOwnerGoes) {
  start();
  add_prefill("p", 1);
  add_decode("d", 2);
  {
    const auto plan = ledger.open("x");
    reserve(plan, pair());
    EXPECT_EQ(ledger.list(10).size(), 1U);
  }
  EXPECT_EQ(live(prefill), 0U);
  EXPECT_EQ(live(destination), 0U);
  EXPECT_TRUE(ledger.list(10).empty());
  EXPECT_EQ(ledger.counts().compensated, 1U);
}

TEST_F(PlanLedgerTest, OutlivesAWorkerThatLeaves) {
  start();
  add_prefill("p", 1);
  add_decode("d", 2);
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  EXPECT_TRUE(plan->publish());
  tell_removed("d");
  tell_removed("p");
  EXPECT_EQ(live(prefill), 0U);
  EXPECT_TRUE(plan->release_prefill());
  plan->on_output(100);
  EXPECT_TRUE(plan->close());
  EXPECT_EQ(live(destination), 0U);
}

TEST_F(PlanLedgerTest, BooksAgainWhatWasGivenBack) {
  start();
  add_prefill("p", 1);
  add_decode("d", 2);
  const auto plan = ledger.open("x");
  EXPECT_FALSE(plan->give_back(Leg::kDestination)) << "nothing is booked";
  reserve(plan, pair());
  tell_removed("d");
  add_decode("other", 3);
  EXPECT_TRUE(plan->give_back(Leg::kDestination));
  EXPECT_EQ(plan->booking(Leg::kDestination), nullptr);
  EXPECT_FALSE(plan->publish()) << "half a plan";
  EXPECT_EQ(live(prefill), 1U);
  std::vector<Plan::Wish> round(1);
  round[0] = {.leg = Leg::kDestination, .service = destination.get(), .request = request()};
  reserve(plan, std::move(round));
  EXPECT_EQ(answers, 2);
  EXPECT_EQ(plan->booking(Leg::kDestination)->facts.rank.worker, 3U);
  EXPECT_TRUE(plan->publish());
  EXPECT_FALSE(plan->give_back(Leg::kDestination)) << "the gateway knows of it";
  plan->close();
  EXPECT_EQ(live(prefill), 0U);
  EXPECT_EQ(live(destination), 0U);
}

TEST_F(PlanLedgerTest, HoldsBackAnAnswerUntilWhatWasGivenBackIsBookedAgain) {
  start_with_busy_prefill();
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  EXPECT_FALSE(plan->give_back(Leg::kDestination)) << "the round is not over";
  EXPECT_FALSE(plan->give_back_while_waiting(Leg::kDestination, 3)) << "not booked there";
  EXPECT_FALSE(plan->give_back_while_waiting(Leg::kPrefill, 1)) << "not booked yet";
  EXPECT_TRUE(plan->give_back_while_waiting(Leg::kDestination, 2));
  EXPECT_EQ(live(destination), 0U);
  busy->close();
  EXPECT_EQ(live(prefill), 1U) << "it waits no more";
  EXPECT_EQ(answers, 0);
  EXPECT_FALSE(plan->publish());
  std::vector<Plan::Wish> round(1);
  round[0] = {.leg = Leg::kDestination, .service = destination.get(), .request = request()};
  reserve(plan, std::move(round));
  EXPECT_EQ(answers, 1);
  EXPECT_FALSE(failure);
  EXPECT_FALSE(plan->give_back_while_waiting(Leg::kDestination, 2)) << "somebody was told";
  EXPECT_TRUE(plan->publish());
  plan->close();
  EXPECT_EQ(live(prefill), 0U);
  EXPECT_EQ(live(destination), 0U);
}

TEST_F(PlanLedgerTest, CountsOutput) {
  start();
  add_prefill("p", 1);
  add_decode("d", 2);
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  plan->on_output(160);
  EXPECT_EQ(decode_blocks(), 20U);
  plan->close();
  EXPECT_EQ(decode_blocks(), 0U);
}

TEST_F(PlanLedgerTest, MovesADestination) {
  start();
  add_prefill("p", 1);
  add_decode("d", 2);
  const auto plan = ledger.open("x");
  reserve(plan, pair());
  plan->publish();
  add_decode("other", 3);
  EXPECT_FALSE(plan->move_destination({.worker = 2, .rank = 0})) << "it is there";
  EXPECT_FALSE(plan->move_destination({.worker = 77, .rank = 0})) << "there is none";
  EXPECT_EQ(live(destination), 1U);
  EXPECT_TRUE(plan->move_destination({.worker = 3, .rank = 0}));
  EXPECT_EQ(plan->booking(Leg::kDestination)->facts.rank.worker, 3U);
  EXPECT_EQ(live(destination), 1U);
  EXPECT_EQ(decode_blocks(), 10U);
  plan->on_output(32);
  EXPECT_EQ(decode_blocks(), 12U);
  plan->close();
  EXPECT_EQ(live(destination), 0U);
  EXPECT_EQ(decode_blocks(), 0U);
}

TEST_F(PlanLedgerTest, ReleasesThePromptOfAnAggregatedWorker) {
  start(false);
  tell(endpoint("w", std::nullopt, 5));
  const auto plan = ledger.open("x");
  std::vector<Plan::Wish> round(1);
  round[0] = {.leg = Leg::kDestination, .service = destination.get(), .request = request()};
  reserve(plan, std::move(round));
  plan->publish();
  EXPECT_EQ(sum(*destination, &WorkerLoad::active_prefill_tokens), 160U);
  EXPECT_TRUE(plan->release_prefill());
  EXPECT_EQ(sum(*destination, &WorkerLoad::active_prefill_tokens), 0U);
  EXPECT_EQ(decode_blocks(), 10U);
}

}  // namespace
}  // namespace handoff::epp
