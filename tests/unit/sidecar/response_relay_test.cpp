#include "sidecar/response_relay.hpp"

#include <memory>
#include <string>

#include "sidecar/http1/message_parser.hpp"
#include "tests/unit/sidecar/loop_case.hpp"

namespace handoff::sidecar {
namespace {

Awaitable<> relay_leg(UpstreamLeg& leg, ResponseRelay& relay, RelayEnd& end) {
  const auto failure = co_await leg.open();
  EXPECT_EQ(failure, LegFailure::none);
  if (failure == LegFailure::none) end = co_await relay.relay(leg, {}, false);
}

Awaitable<> send_answer(ResponseRelay& relay, const Answer& answer, RelayEnd& end) {
  end = co_await relay.send(answer);
}

Awaitable<> send_in_pieces(ResponseRelay& relay, const Answer& head, RelayEnd& end) {
  end = co_await relay.begin(head);
  const std::string_view pieces[] = {"one", "", "two"};
  end = co_await relay.write(pieces, false);
  end = co_await relay.write({}, true);
}

class ResponseRelayTest : public LoopCase {
 protected:
  ResponseRelayTest() {
    auto [near, far] = make_connection();
    client_ = std::make_unique<ClientConnection>(deadlines, std::move(near), kPatience);
    far_ = std::make_unique<Socket>(std::move(far));
    far_->non_blocking(true);
  }

  ResponseRelay& relay_for(const std::string& request) {
    http1::RequestParser parser;
    EXPECT_EQ(parser.parse_head(request, {}, request_).status, http1::HeadStatus::complete);
    return relay_.emplace(*client_, request_, draining_);
  }
  ResponseRelay& relay_for_post() { return relay_for("POST / HTTP/1.1\r\nHost: a\r\n\r\n"); }

  /// Relays what an engine says after a request.
  RelayEnd relay(Script script, const std::string& method = "POST") {
    script.insert(script.begin(), Step::read_request());
    ScriptedEngine engine(context, {std::move(script)});
    UpstreamLeg leg(legs, LegRequest{.engine = engine.address(),
                                     .head = method + " / HTTP/1.1\r\n\r\n",
                                     .body = {},
                                     .upload = nullptr,
                                     .is_head = method == "HEAD",
                                     .may_resend = false,
                                     .deadline = milliseconds(0),
                                     .on_sent = nullptr,
                                     .on_connected = nullptr});
    auto end = RelayEnd::client_gone;
    run(relay_leg(leg, *relay_, end));
    return end;
  }

  /// What the client has received by now; `ec` tells how the connection ended, if it did.
  std::string received() {
    std::string out;
    char buffer[4096];
    while (true) {
      const auto size = far_->read_some(net::buffer(buffer), end_);
      if (end_) return out;
      out.append(buffer, size);
    }
  }

  std::unique_ptr<ClientConnection> client_;
  std::unique_ptr<Socket> far_;
  error_code end_;
  http1::RequestHead request_;
  bool draining_ = false;
  std::optional<ResponseRelay> relay_;
};

TEST_F(ResponseRelayTest, SendsAnAnswerOfItsOwn) {
  auto& relay = relay_for_post();
  const Answer answer{503, {{"retry-after", "1"}}, "busy"};
  auto end = RelayEnd::engine_failed;
  run(send_answer(relay, answer, end));
  EXPECT_EQ(end, RelayEnd::complete);
  EXPECT_EQ(received(),
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 4\r\n\r\nbusy");
  EXPECT_TRUE(relay.keep_alive());
  EXPECT_EQ(relay.status(), 503u);
}

TEST_F(ResponseRelayTest, SaysThatItClosesWhenItDoes) {
  const struct {
    const char* why;
    std::string request;
    bool draining, forbidden;
    std::string field;
  } rows[] = {
      {"the client wishes it", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", false, false,
       "connection: close\r\n"},
      {"draining", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", true, false, "connection: close\r\n"},
      {"part of the request is unread", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, true,
       "connection: close\r\n"},
      {"HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", false, false, "connection: close\r\n"},
      {"HTTP/1.0 that asks to go on", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false, false,
       "connection: keep-alive\r\n"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    draining_ = row.draining;
    auto& relay = relay_for(row.request);
    if (row.forbidden) relay.forbid_keep_alive();
    const Answer answer{200, {}, "x"};
    auto end = RelayEnd::engine_failed;
    run(send_answer(relay, answer, end));
    EXPECT_EQ(received(), "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n" + row.field + "\r\nx");
  }
}

TEST_F(ResponseRelayTest, SendsNoBodyToHead) {
  auto& relay = relay_for("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  const Answer answer{200, {}, "alive"};
  auto end = RelayEnd::engine_failed;
  run(send_answer(relay, answer, end));
  EXPECT_EQ(received(), "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n");
}

TEST_F(ResponseRelayTest, ChunksAnAnswerInPiecesButHasNoEmptyChunk) {
  auto& relay = relay_for_post();
  const Answer head{200, {}, {}};
  auto end = RelayEnd::engine_failed;
  run(send_in_pieces(relay, head, end));
  EXPECT_EQ(received(),
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
  EXPECT_TRUE(relay.complete());
}

TEST_F(ResponseRelayTest, KeepsFixedLengthsAndDropsFieldsOfTheOtherHop) {
  relay_for_post();
  EXPECT_EQ(relay({Step::send("HTTP/1.1 201 Made\r\nX-A: 1\r\nKeep-Alive: 5\r\nConnection: X-B\r\nX-B: 2\r\n"
                              "Content-Length: 2\r\n\r\nhi")}),
            RelayEnd::complete);
  EXPECT_EQ(received(), "HTTP/1.1 201 Made\r\nX-A: 1\r\ncontent-length: 2\r\n\r\nhi");
}

TEST_F(ResponseRelayTest, ChunksWhatHasNoLength) {
  relay_for_post();
  EXPECT_EQ(relay({Step::send("HTTP/1.0 200 OK\r\n\r\nhi"), Step::close()}), RelayEnd::complete);
  EXPECT_EQ(received(), "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
}

TEST_F(ResponseRelayTest, GathersManySmallChunks) {
  relay_for_post();
  std::string chunks;
  for (int i = 0; i < 100; ++i) chunks += "2\r\nhi\r\n";
  EXPECT_EQ(
      relay({Step::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n")}),
      RelayEnd::complete);
  EXPECT_EQ(received(), "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n");
}

TEST_F(ResponseRelayTest, EndsWithTheConnectionForOldClients) {
  auto& to_client = relay_for("POST / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(relay({Step::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")}),
            RelayEnd::complete);
  EXPECT_EQ(received(), "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhi");
  EXPECT_FALSE(to_client.keep_alive());
}

TEST_F(ResponseRelayTest, AnswersHeadWithTheLengthThatGetWouldHave) {
  relay_for("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(relay({Step::send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")}, "HEAD"), RelayEnd::complete);
  EXPECT_EQ(received(), "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n");
}

TEST_F(ResponseRelayTest, SaysNothingOfAReplyThatBreaksInItsFirstBytes) {
  auto& to_client = relay_for_post();
  EXPECT_EQ(relay({Step::send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")}),
            RelayEnd::engine_failed);
  EXPECT_FALSE(to_client.started());
  EXPECT_EQ(to_client.failure(), LegFailure::malformed);
  const Answer answer{502, {}, "no"};
  auto end = RelayEnd::engine_failed;
  run(send_answer(to_client, answer, end));
  EXPECT_EQ(received(), "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\nno");
}

TEST_F(ResponseRelayTest, BreaksOffSoThatNobodyTakesItForComplete) {
  const struct {
    const char* why;
    std::string request;
    std::string reply;
    std::string last;  // that the client has seen
    bool reset;
  } rows[] = {
      {"chunks", "POST / HTTP/1.1\r\nHost: a\r\n\r\n",
       "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n", "2\r\nhi\r\n", false},
      {"a length", "POST / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi",
       "hi", false},
      {"the end of the connection would be the end of the body", "POST / HTTP/1.0\r\n\r\n",
       "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n", "hi", true},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    auto [near, far] = make_connection();
    client_ = std::make_unique<ClientConnection>(deadlines, std::move(near), kPatience);
    far_ = std::make_unique<Socket>(std::move(far));
    far_->non_blocking(true);
    auto& to_client = relay_for(row.request);
    EXPECT_EQ(relay({Step::send(row.reply), Step::close()}), RelayEnd::engine_failed);
    EXPECT_TRUE(to_client.started());
    EXPECT_TRUE(received().ends_with(row.last));
    to_client.break_off();
    EXPECT_FALSE(to_client.complete());
    EXPECT_FALSE(to_client.keep_alive());
    EXPECT_EQ(received(), "");
    EXPECT_EQ(end_, row.reset ? error_code(net::error::connection_reset) : error_code(net::error::eof));
  }
}

TEST_F(ResponseRelayTest, ReadsNoFurtherWhileTheClientIsBehind) {
  auto& to_client = relay_for_post();
  const std::string large(64 * 1024 * 1024, 'x');
  ScriptedEngine engine(
      context,
      {{Step::read_request(), Step::send("HTTP/1.1 200 OK\r\ncontent-length: 67108864\r\n\r\n" + large)}});
  UpstreamLeg leg(legs, LegRequest{.engine = engine.address(),
                                   .head = "POST / HTTP/1.1\r\n\r\n",
                                   .body = {},
                                   .upload = nullptr,
                                   .is_head = false,
                                   .may_resend = false,
                                   .deadline = milliseconds(0),
                                   .on_sent = nullptr,
                                   .on_connected = nullptr});
  auto end = RelayEnd::engine_failed;
  bool ended = false;
  spawn(relay_leg(leg, to_client, end), ended);
  run_for(kShort * 5);
  EXPECT_FALSE(ended);
  EXPECT_LE(client_->unsent(), scratch.size());
  std::size_t got = 0;
  const auto take = [&] {
    got += received().size();
    return ended;
  };
  EXPECT_TRUE(run_until(take));
  got += received().size();
  EXPECT_EQ(end, RelayEnd::complete);
  EXPECT_GT(got, large.size());
}

TEST_F(ResponseRelayTest, EndsWhenTheClientHasGone) {
  relay_for_post();
  far_->set_option(net::socket_base::linger(true, 0));
  far_->close();
  EXPECT_EQ(relay({Step::send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nh"), Step::send("i")}),
            RelayEnd::client_gone);
  EXPECT_TRUE(client_->gone());
}

}  // namespace
}  // namespace handoff::sidecar
