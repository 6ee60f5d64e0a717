#include "sidecar/background_calls.hpp"

#include "tests/unit/sidecar/loop_case.hpp"

namespace handoff::sidecar {
namespace {

class BackgroundCallsTest : public LoopCase {
 protected:
  BackgroundCalls::Call call_to(const EngineAddress& engine, milliseconds deadline = kPatience) {
    return {.name = "release",
            .engine = engine,
            .head = "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n",
            .body = "body",
            .deadline = deadline};
  }
  std::uint64_t count(const char* name) const { return counters.value({}, name); }
  bool run_until_idle() {
    return run_until([&] { return calls.running() == 0; });
  }

  Counters counters;
  BackgroundCalls calls{legs, counters};
};

TEST_F(BackgroundCallsTest, ReadsTheAnswerToItsEndAndCounts) {
  ScriptedEngine engine(context,
                        {{Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"),
                          Step::wait_for_close()}});
  calls.start(call_to(engine.address()));
  EXPECT_EQ(calls.running(), 1u);
  EXPECT_TRUE(run_until_idle());
  EXPECT_EQ(count("background.release.ok"), 1u);
  ASSERT_EQ(engine.requests().size(), 1u);
  EXPECT_TRUE(engine.requests()[0].ends_with("\r\n\r\nbody"));
  EXPECT_EQ(pool.idle_count(), 1u);
}

TEST_F(BackgroundCallsTest, CountsRefusalsAndFailures) {
  ScriptedEngine refusing(
      context, {{Step::read_request(), Step::send("HTTP/1.1 400 x\r\ncontent-length: 0\r\n\r\n")}});
  ScriptedEngine broken(context, {{Step::read_request(), Step::reset()}});
  calls.start(call_to(refusing.address()));
  calls.start(call_to(broken.address()));
  EXPECT_TRUE(run_until_idle());
  EXPECT_EQ(count("background.release.failed"), 2u);
}

TEST_F(BackgroundCallsTest, IsBoundedInTime) {
  ScriptedEngine engine(context, {{Step::read_request(), Step::wait_for_close()}});
  calls.start(call_to(engine.address(), kShort));
  EXPECT_TRUE(run_until_idle());
  EXPECT_EQ(count("background.release.failed"), 1u);
  EXPECT_TRUE(run_until([&] { return engine.ended() == 1; }));
}

TEST_F(BackgroundCallsTest, CancelEndsThemAndLetsNoneBegin) {
  ScriptedEngine engine(context, {{Step::read_request(), Step::wait_for_close()}});
  calls.start(call_to(engine.address()));
  ASSERT_TRUE(run_until([&] { return engine.requests().size() == 1; }));
  calls.cancel();
  EXPECT_TRUE(run_until_idle());
  calls.start(call_to(engine.address()));
  EXPECT_EQ(calls.running(), 0u);
  EXPECT_EQ(count("background.release.dropped"), 1u);
}

}  // namespace
}  // namespace handoff::sidecar
