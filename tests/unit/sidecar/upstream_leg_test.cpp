#include "sidecar/upstream_leg.hpp"

#include <memory>
#include <string>

#include "tests/unit/sidecar/loop_case.hpp"

namespace handoff::sidecar {
namespace {

const std::string kReply = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

struct Outcome {
  LegFailure open = LegFailure::none;
  LegFailure body = LegFailure::none;
  std::string content;
  bool complete = false;
  bool ended = false;
};

Awaitable<> converse(UpstreamLeg& leg, Outcome& out) {
  out.open = co_await leg.open();
  if (out.open == LegFailure::none) {
    auto body = leg.first();
    while (true) {
      for (const auto piece : body.pieces) out.content += piece;
      out.body = body.failure;
      out.complete = body.complete;
      if (body.complete || body.failure != LegFailure::none) break;
      body = co_await leg.read();
    }
  }
  out.ended = true;
}

class UpstreamLegTest : public LoopCase {
 protected:
  std::unique_ptr<UpstreamLeg> leg_to(const EngineAddress& engine, bool may_resend = false,
                                      milliseconds deadline = milliseconds(0)) {
    return std::make_unique<UpstreamLeg>(legs,
                                         LegRequest{.engine = engine,
                                                    .head = "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n",
                                                    .body = {&body_, 1},
                                                    .upload = nullptr,
                                                    .is_head = false,
                                                    .may_resend = may_resend,
                                                    .new_connection = new_connection_,
                                                    .deadline = deadline,
                                                    .on_sent = nullptr,
                                                    .on_connected = nullptr});
  }
  Outcome ask(const EngineAddress& engine, bool may_resend = false) {
    const auto leg = leg_to(engine, may_resend);
    Outcome out;
    run(converse(*leg, out));
    return out;
  }
  /// Starts it; ask_for() then drives the loop.
  void start(UpstreamLeg& leg, Outcome& out) { spawn(converse(leg, out), started_); }

  std::string_view body_ = "body";
  bool new_connection_ = false;
  bool started_ = false;
};

TEST_F(UpstreamLegTest, SendsTheRequestAndGivesTheReply) {
  ScriptedEngine engine(context, {{Step::read_request(), Step::send(kReply), Step::wait_for_close()}});
  const auto out = ask(engine.address());
  EXPECT_EQ(out.open, LegFailure::none);
  EXPECT_TRUE(out.complete);
  EXPECT_EQ(out.content, "hi");
  ASSERT_EQ(engine.requests().size(), 1u);
  EXPECT_EQ(engine.requests()[0], "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody");
  EXPECT_EQ(pool.idle_count(), 1u);
}

TEST_F(UpstreamLegTest, SkipsInterimResponses) {
  ScriptedEngine engine(
      context, {{Step::read_request(),
                 Step::send("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"),
                 Step::send(kReply)}});
  const auto leg = leg_to(engine.address());
  Outcome out;
  run(converse(*leg, out));
  EXPECT_EQ(leg->head().status, 200u);
  EXPECT_EQ(out.content, "hi");
}

TEST_F(UpstreamLegTest, RefusesAnUpgradeThatNobodyAskedFor) {
  ScriptedEngine engine(context,
                        {{Step::read_request(), Step::send("HTTP/1.1 101 Switching Protocols\r\n\r\n")}});
  EXPECT_EQ(ask(engine.address()).open, LegFailure::malformed);
}

TEST_F(UpstreamLegTest, NamesItsFailures) {
  const struct {
    const char* why;
    Script script;
    LegFailure open, body;
  } rows[] = {
      {"closed without a reply", {Step::read_request(), Step::close()}, LegFailure::reset, LegFailure::none},
      {"reset without a reply", {Step::read_request(), Step::reset()}, LegFailure::reset, LegFailure::none},
      {"closed within the head",
       {Step::read_request(), Step::send("HTTP/1.1 200"), Step::close()},
       LegFailure::reset,
       LegFailure::none},
      {"no HTTP",
       {Step::read_request(), Step::send("hello\r\n\r\n")},
       LegFailure::malformed,
       LegFailure::none},
      {"a head without end",
       {Step::read_request(), Step::send("HTTP/1.1 200 OK\r\nx: " + std::string(100000, 'x'))},
       LegFailure::too_large,
       LegFailure::none},
      {"closed within the body",
       {Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"), Step::close()},
       LegFailure::none,
       LegFailure::reset},
      {"a wrong chunk",
       {Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")},
       LegFailure::none,
       LegFailure::malformed},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    ScriptedEngine engine(context, {row.script});
    const auto out = ask(engine.address(), /*may_resend=*/true);
    EXPECT_EQ(out.open, row.open);
    EXPECT_EQ(out.body, row.body);
    EXPECT_FALSE(out.complete);
    EXPECT_EQ(pool.idle_count(), 0u);
    EXPECT_EQ(engine.connections(), 1u) << "a fresh connection is no reason to ask again";
  }
}

TEST_F(UpstreamLegTest, RefusedConnectionIsAConnectFailure) {
  std::uint16_t port = 0;
  {
    net::basic_socket_acceptor<tcp, Executor> gone(context,
                                                   tcp::endpoint(net::ip::address_v4::loopback(), 0));
    port = gone.local_endpoint().port();
  }
  EXPECT_EQ(ask(make_engine_address("127.0.0.1", port)).open, LegFailure::connect);
}

TEST_F(UpstreamLegTest, AHostWithoutAddressIsNotARefusedConnection) {
  EXPECT_EQ(ask(make_engine_address("no such host", 80)).open, LegFailure::name);
}

TEST_F(UpstreamLegTest, TakesABodyUntilTheEndOfTheConnection) {
  ScriptedEngine engine(
      context, {{Step::read_request(), Step::send("HTTP/1.0 200 OK\r\n\r\nall of it"), Step::close()}});
  const auto out = ask(engine.address());
  EXPECT_TRUE(out.complete);
  EXPECT_EQ(out.content, "all of it");
  EXPECT_EQ(pool.idle_count(), 0u);
}

TEST_F(UpstreamLegTest, KeepsNoConnectionThatIsNotClean) {
  const struct {
    const char* why;
    std::string reply;
  } rows[] = {
      {"the engine wants to close", "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"},
      {"bytes behind the reply", kReply + "HTTP/1.1 200 OK\r\n"},
      {"HTTP/1.0", "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    ScriptedEngine engine(context, {{Step::read_request(), Step::send(row.reply), Step::wait_for_close()}});
    EXPECT_EQ(ask(engine.address()).content, "hi");
    EXPECT_EQ(pool.idle_count(), 0u);
  }
}

TEST_F(UpstreamLegTest, ReusesAConnection) {
  ScriptedEngine engine(context, {{Step::read_request(), Step::send(kReply), Step::read_request(),
                                   Step::send(kReply), Step::wait_for_close()}});
  EXPECT_EQ(ask(engine.address()).content, "hi");
  EXPECT_EQ(ask(engine.address()).content, "hi");
  EXPECT_EQ(engine.connections(), 1u);
}

TEST_F(UpstreamLegTest, TakesNoKeptConnectionWhereItMustBeNew) {
  const Script twice{Step::read_request(), Step::send(kReply), Step::read_request(), Step::send(kReply)};
  ScriptedEngine engine(context, {twice, twice});
  EXPECT_EQ(ask(engine.address()).content, "hi");
  new_connection_ = true;
  EXPECT_EQ(ask(engine.address()).content, "hi");
  EXPECT_EQ(engine.connections(), 2u);
  EXPECT_EQ(pool.idle_count(), 2u);
}

// The engine closes just as the second request arrives.
TEST_F(UpstreamLegTest, AsksAgainOnceWhenAKeptConnectionFails) {
  ScriptedEngine engine(context,
                        {{Step::read_request(), Step::send(kReply), Step::read_request(), Step::reset()},
                         {Step::read_request(), Step::send(kReply), Step::wait_for_close()}});
  EXPECT_EQ(ask(engine.address(), /*may_resend=*/true).content, "hi");
  const auto leg = leg_to(engine.address(), /*may_resend=*/true);
  Outcome out;
  run(converse(*leg, out));
  EXPECT_EQ(out.content, "hi");
  EXPECT_EQ(engine.connections(), 2u);
  EXPECT_FALSE(leg->on_reused());
}

TEST_F(UpstreamLegTest, DoesNotAskAgainWhatMayNotBeSentTwice) {
  ScriptedEngine engine(context,
                        {{Step::read_request(), Step::send(kReply), Step::read_request(), Step::reset()},
                         {Step::read_request(), Step::send(kReply)}});
  EXPECT_EQ(ask(engine.address()).content, "hi");
  const auto leg = leg_to(engine.address());
  Outcome out;
  run(converse(*leg, out));
  EXPECT_EQ(out.open, LegFailure::reset);
  EXPECT_TRUE(leg->on_reused());
  EXPECT_TRUE(leg->request_sent());
  EXPECT_FALSE(leg->reply_started());
  EXPECT_EQ(engine.connections(), 1u);
}

// Whoever makes another try with a leg of its own must not run into the next connection that the engine
// closes.
TEST_F(UpstreamLegTest, KeepsNoOtherConnectionToAnEngineThatClosedOneUnderARequest) {
  const Script closes{Step::read_request(), Step::send(kReply), Step::read_request(), Step::reset()};
  ScriptedEngine engine(context,
                        {closes, closes, {Step::read_request(), Step::send(kReply), Step::wait_for_close()}});
  const auto one = leg_to(engine.address());
  const auto two = leg_to(engine.address());
  Outcome of_one;
  Outcome of_two;
  start(*one, of_one);
  run(converse(*two, of_two));
  ASSERT_TRUE(run_until([&] { return of_one.ended; }));
  ASSERT_EQ(pool.idle_count(), 2u);
  EXPECT_EQ(ask(engine.address()).open, LegFailure::reset);
  EXPECT_EQ(pool.idle_count(), 0u);
  EXPECT_EQ(ask(engine.address()).content, "hi");
  EXPECT_EQ(engine.connections(), 3u);
}

TEST_F(UpstreamLegTest, DoesNotAskAgainOnceAReplyHasBegun) {
  ScriptedEngine engine(context, {{Step::read_request(), Step::send(kReply), Step::read_request(),
                                   Step::send("HTTP/1.1 2"), Step::reset()},
                                  {Step::read_request(), Step::send(kReply)}});
  EXPECT_EQ(ask(engine.address(), true).content, "hi");
  EXPECT_EQ(ask(engine.address(), true).open, LegFailure::reset);
  EXPECT_EQ(engine.connections(), 1u);
}

// It answers after the head, while a body that no socket buffer holds is being sent.
TEST_F(UpstreamLegTest, TakesAnAnswerThatComesBeforeTheWholeRequest) {
  const std::string large(32 * 1024 * 1024, 'x');
  const std::string_view body = large;
  ScriptedEngine engine(context, {{Step::send("HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno"),
                                   Step::read_request(), Step::wait_for_close()}});
  UpstreamLeg leg(legs, LegRequest{.engine = engine.address(),
                                   .head = "POST / HTTP/1.1\r\n\r\n",
                                   .body = {&body, 1},
                                   .upload = nullptr,
                                   .is_head = false,
                                   .may_resend = false,
                                   .deadline = milliseconds(0),
                                   .on_sent = nullptr,
                                   .on_connected = nullptr});
  Outcome out;
  run(converse(leg, out));
  EXPECT_EQ(out.open, LegFailure::none);
  EXPECT_EQ(leg.head().status, 413u);
  EXPECT_EQ(out.content, "no");
  EXPECT_FALSE(leg.fully_sent());
  EXPECT_EQ(pool.idle_count(), 0u);
}

TEST_F(UpstreamLegTest, GoesOnSendingAfterAnInterimResponse) {
  const std::string large(8 * 1024 * 1024, 'x');  // twice what a socket takes at once
  const std::string_view body = large;
  ScriptedEngine engine(
      context, {{Step::send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n"),
                 Step::read_head(), Step::send("\r\n"), Step::read_request(), Step::send(kReply),
                 Step::wait_for_close()}});
  UpstreamLeg leg(
      legs,
      LegRequest{.engine = engine.address(),
                 .head = "POST / HTTP/1.1\r\ncontent-length: " + std::to_string(body.size()) + "\r\n\r\n",
                 .body = {&body, 1},
                 .upload = nullptr,
                 .is_head = false,
                 .may_resend = false,
                 .deadline = milliseconds(0),
                 .on_sent = nullptr,
                 .on_connected = nullptr});
  Outcome out;
  run(converse(leg, out));
  EXPECT_EQ(out.open, LegFailure::none);
  EXPECT_EQ(leg.head().status, 200u);
  EXPECT_EQ(out.content, "hi");
  EXPECT_TRUE(leg.fully_sent());
  EXPECT_EQ(pool.idle_count(), 1u);
}

TEST_F(UpstreamLegTest, SilenceEndsInAReadTimeOut) {
  legs.read_timeout = kShort;
  ScriptedEngine before(context, {{Step::read_request(), Step::wait_for_close()}});
  EXPECT_EQ(ask(before.address()).open, LegFailure::read_timeout);
  ScriptedEngine within(context,
                        {{Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"),
                          Step::wait_for_close()}});
  const auto out = ask(within.address());
  EXPECT_EQ(out.body, LegFailure::read_timeout);
  EXPECT_EQ(out.content, "hi");
}

TEST_F(UpstreamLegTest, DeadlineBoundsAllOfIt) {
  ScriptedEngine engine(context,
                        {{Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"),
                          Step::wait_for_close()}});
  const auto leg = leg_to(engine.address(), false, kShort);
  Outcome out;
  run(converse(*leg, out));
  EXPECT_EQ(out.body, LegFailure::deadline);
}

TEST_F(UpstreamLegTest, CancelEndsItAtEveryStageAndClosesTheConnection) {
  const struct {
    const char* why;
    Script script;
    bool has_head;
  } rows[] = {
      {"before the reply", {Step::read_request(), Step::wait_for_close()}, false},
      {"within the head", {Step::read_request(), Step::send("HTTP/1.1 200"), Step::wait_for_close()}, false},
      {"within the body",
       {Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"),
        Step::wait_for_close()},
       true},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    ScriptedEngine engine(context, {row.script});
    auto leg = leg_to(engine.address(), /*may_resend=*/true);
    Outcome out;
    start(*leg, out);
    ASSERT_TRUE(run_until([&] { return engine.requests().size() == 1; }));
    run_for(kShort);
    leg->cancel();
    ASSERT_TRUE(run_until([&] { return out.ended; }));
    EXPECT_EQ(row.has_head ? out.body : out.open, LegFailure::cancelled);
    EXPECT_TRUE(run_until([&] { return engine.ended() == 1; })) << "the engine sees that we have gone";
  }
}

TEST_F(UpstreamLegTest, CancelBeforeOpenSendsNothing) {
  ScriptedEngine engine(context, {{Step::read_request()}});
  const auto leg = leg_to(engine.address());
  leg->cancel();
  Outcome out;
  run(converse(*leg, out));
  EXPECT_EQ(out.open, LegFailure::cancelled);
  EXPECT_FALSE(leg->request_sent());
}

// Nobody waits in the leg at that moment: the exchange is busy with the client.
Awaitable<> cancel_between_reads(UpstreamLeg& leg, LegFailure& failure) {
  failure = co_await leg.open();
  (void)leg.first();
  leg.cancel();
  const auto body = co_await leg.read();
  failure = body.failure;
}

TEST_F(UpstreamLegTest, CancelBetweenTwoReadsIsNotForgotten) {
  ScriptedEngine engine(context,
                        {{Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"),
                          Step::wait_for_close()}});
  const auto leg = leg_to(engine.address());
  auto failure = LegFailure::none;
  run(cancel_between_reads(*leg, failure));
  EXPECT_EQ(failure, LegFailure::cancelled);
}

TEST_F(UpstreamLegTest, CancelWhileConnectingSendsNothing) {
  ScriptedEngine engine(context, {{Step::read_request(), Step::wait_for_close()}});
  const auto leg = leg_to(engine.address());
  Outcome out;
  start(*leg, out);
  leg->cancel();  // the connect has been started at most
  ASSERT_TRUE(run_until([&] { return out.ended; }));
  EXPECT_EQ(out.open, LegFailure::cancelled);
  EXPECT_FALSE(leg->request_sent());
}

TEST_F(UpstreamLegTest, NudgeDoesNotDisturbOpen) {
  ScriptedEngine engine(context, {{Step::read_request(), Step::read_request(), Step::send(kReply)}});
  const auto leg = leg_to(engine.address());
  Outcome out;
  start(*leg, out);
  ASSERT_TRUE(run_until([&] { return engine.requests().size() == 1; }));
  leg->nudge();
  run_for(kShort);
  EXPECT_FALSE(out.ended);
  leg->cancel();
  ASSERT_TRUE(run_until([&] { return out.ended; }));
  EXPECT_EQ(out.open, LegFailure::cancelled);
}

Awaitable<> read_once(UpstreamLeg& leg, bool& waits, UpstreamLeg::Body& body) {
  (void)co_await leg.open();
  (void)leg.first();
  waits = true;
  body = co_await leg.read();
}

TEST_F(UpstreamLegTest, NudgeEndsAWaitingReadWithNothing) {
  ScriptedEngine engine(context,
                        {{Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"),
                          Step::wait_for_close()}});
  const auto leg = leg_to(engine.address());
  bool waits = false;
  bool ended = false;
  UpstreamLeg::Body body{.failure = LegFailure::reset, .complete = true, .pieces = {}, .verbatim = {}};
  spawn(read_once(*leg, waits, body), ended);
  ASSERT_TRUE(run_until([&] { return waits; }));
  run_for(kShort);
  leg->nudge();
  ASSERT_TRUE(run_until([&] { return ended; }));
  EXPECT_EQ(body.failure, LegFailure::none);
  EXPECT_FALSE(body.complete);
  EXPECT_TRUE(body.pieces.empty());
}

TEST_F(UpstreamLegTest, LargeRepliesArriveWhole) {
  std::string chunks, content;
  for (int i = 0; i < 3000; ++i) {
    const std::string piece(static_cast<std::size_t>(1 + i % 97), static_cast<char>('a' + i % 26));
    char size[16];
    std::snprintf(size, sizeof(size), "%zx\r\n", piece.size());
    chunks += size + piece + "\r\n";
    content += piece;
  }
  ScriptedEngine engine(
      context, {{Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" +
                                                  chunks + "0\r\n\r\n")}});
  const auto out = ask(engine.address());
  EXPECT_TRUE(out.complete);
  EXPECT_EQ(out.content, content);
}

}  // namespace
}  // namespace handoff::sidecar
