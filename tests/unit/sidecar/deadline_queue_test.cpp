#include "sidecar/deadline_queue.hpp"

#include <memory>
#include <string>

#include "tests/unit/sidecar/loop_case.hpp"

namespace handoff::sidecar {
namespace {

using DeadlineQueueTest = LoopCase;

TEST_F(DeadlineQueueTest, ExpiresInTheOrderOfTimeNotOfArming) {
  std::string order;
  Deadline third(deadlines, [&] { order += '3'; });
  Deadline first(deadlines, [&] { order += '1'; });
  Deadline second(deadlines, [&] { order += '2'; });
  const auto now = Clock::now();
  third.arm_at(now + milliseconds(9));
  first.arm_at(now + milliseconds(3));
  second.arm_at(now + milliseconds(6));
  EXPECT_TRUE(run_until([&] { return order.size() == 3; }));
  EXPECT_EQ(order, "123");
}

TEST_F(DeadlineQueueTest, ExpiresOncePerArming) {
  int times = 0;
  Deadline deadline(deadlines, [&] { ++times; });
  deadline.arm(milliseconds(1));
  EXPECT_TRUE(deadline.armed());
  EXPECT_TRUE(run_until([&] { return times == 1; }));
  EXPECT_FALSE(deadline.armed());
  run_for(kShort);
  EXPECT_EQ(times, 1);
  deadline.arm(milliseconds(1));
  EXPECT_TRUE(run_until([&] { return times == 2; }));
}

TEST_F(DeadlineQueueTest, MovedLaterDoesNotExpireAtItsFirstTime) {
  Clock::time_point expired{};
  Deadline deadline(deadlines, [&] { expired = Clock::now(); });
  deadline.arm(milliseconds(2));
  const auto due = Clock::now() + kShort;
  deadline.arm_at(due);
  EXPECT_TRUE(run_until([&] { return expired != Clock::time_point{}; }));
  EXPECT_GE(expired, due);
}

TEST_F(DeadlineQueueTest, MovedEarlierExpiresThen) {
  bool expired = false;
  Deadline deadline(deadlines, [&] { expired = true; });
  deadline.arm(kPatience * 10);
  deadline.arm(milliseconds(1));
  EXPECT_TRUE(run_until([&] { return expired; }));
}

TEST_F(DeadlineQueueTest, DisarmedDoesNotExpire) {
  bool expired = false;
  Deadline deadline(deadlines, [&] { expired = true; });
  deadline.arm(milliseconds(1));
  deadline.disarm();
  run_for(kShort);
  EXPECT_FALSE(expired);
}

// It is still queued under its old time then, and must be found again.
TEST_F(DeadlineQueueTest, DisarmedAndArmedAgainExpiresOnceAtTheNewTime) {
  int times = 0;
  Deadline deadline(deadlines, [&] { ++times; });
  deadline.arm(milliseconds(1));
  deadline.disarm();
  deadline.arm(milliseconds(5));
  EXPECT_TRUE(run_until([&] { return times == 1; }));
  run_for(kShort);
  EXPECT_EQ(times, 1);
}

TEST_F(DeadlineQueueTest, DestroyedWhileQueuedIsForgotten) {
  bool expired = false;
  bool other = false;
  Deadline later(deadlines, [&] { other = true; });
  later.arm(milliseconds(5));
  {
    Deadline deadline(deadlines, [&] { expired = true; });
    deadline.arm(milliseconds(1));
  }
  EXPECT_TRUE(run_until([&] { return other; }));
  EXPECT_FALSE(expired);
}

TEST_F(DeadlineQueueTest, MayDestroyItselfAndOthersWhenItExpires) {
  std::unique_ptr<Deadline> doomed, other;
  bool called = false;
  other = std::make_unique<Deadline>(deadlines, [] { FAIL() << "was destroyed"; });
  doomed = std::make_unique<Deadline>(deadlines, [&] {
    called = true;
    other.reset();
    doomed.reset();
  });
  const auto now = Clock::now();
  doomed->arm_at(now + milliseconds(1));
  other->arm_at(now + milliseconds(1));
  EXPECT_TRUE(run_until([&] { return called; }));
  run_for(kShort);
}

TEST_F(DeadlineQueueTest, MayArmItselfAgainWhenItExpires) {
  int times = 0;
  Deadline* self = nullptr;
  Deadline deadline(deadlines, [&] {
    if (++times < 3) self->arm(milliseconds(0));
  });
  self = &deadline;
  deadline.arm(milliseconds(0));
  EXPECT_TRUE(run_until([&] { return times == 3; }));
}

TEST_F(DeadlineQueueTest, ExpiresNothingOnceStopped) {
  bool expired = false;
  Deadline deadline(deadlines, [&] { expired = true; });
  deadline.arm(milliseconds(1));
  deadlines.stop();
  Deadline later(deadlines, [&] { expired = true; });
  later.arm(milliseconds(1));
  run_for(kShort);
  EXPECT_FALSE(expired);
}

}  // namespace
}  // namespace handoff::sidecar
