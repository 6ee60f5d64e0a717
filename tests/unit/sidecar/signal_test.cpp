#include "sidecar/signal.hpp"

#include "tests/unit/sidecar/loop_case.hpp"

namespace handoff::sidecar {
namespace {

using SignalTest = LoopCase;

Awaitable<> wait_and_count(Signal& signal, int times, int& woken) {
  for (int i = 0; i < times; ++i) {
    co_await signal.wait();
    ++woken;
  }
}

TEST_F(SignalTest, WakesItsWaiterFromTheLoopNotFromNotify) {
  Signal signal(context.get_executor());
  int woken = 0;
  bool ended = false;
  spawn(wait_and_count(signal, 1, woken), ended);
  run_for(kShort);
  EXPECT_EQ(woken, 0);
  signal.notify();
  EXPECT_EQ(woken, 0);
  EXPECT_TRUE(run_until([&] { return ended; }));
}

TEST_F(SignalTest, RemembersOneNotificationWithoutWaiter) {
  Signal signal(context.get_executor());
  signal.notify();
  signal.notify();
  int woken = 0;
  bool ended = false;
  spawn(wait_and_count(signal, 2, woken), ended);
  run_for(kShort);
  EXPECT_EQ(woken, 1);
  signal.notify();
  EXPECT_TRUE(run_until([&] { return ended; }));
}

TEST_F(SignalTest, ForgetsWhenCleared) {
  Signal signal(context.get_executor());
  signal.notify();
  signal.clear();
  int woken = 0;
  bool ended = false;
  spawn(wait_and_count(signal, 1, woken), ended);
  run_for(kShort);
  EXPECT_EQ(woken, 0);
  signal.notify();
  EXPECT_TRUE(run_until([&] { return ended; }));
}

}  // namespace
}  // namespace handoff::sidecar
