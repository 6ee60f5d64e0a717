#include "stream_fixture.hpp"

namespace handoff::epp {
namespace {

class ExtProcResponse : public ExtProcFixture {
 protected:
  void send_request() {
    stream.on_request_headers(head(), true, std::nullopt);
    EXPECT_EQ(answers(), Texts{"request headers 10.0.0.7:8000"});
    events.log.clear();
  }
};

TEST_F(ExtProcResponse, EchoesEachPieceAtOnce) {
  send_request();
  stream.on_response_headers("200", "text/event-stream; charset=utf-8", false);
  EXPECT_EQ(answers(), Texts{"response headers"});
  stream.on_response_body("data: 1\n\n", false);
  EXPECT_EQ(answers(), Texts{"response body [data: 1\n\n]"});
  stream.on_response_body("data: 2\n\n", true);
  EXPECT_EQ(answers(), Texts{"response body [data: 2\n\n] end"});
  EXPECT_EQ(events.log, (Texts{"started 200 sse", "first byte", "ended"}));
  EXPECT_EQ(events.response, "data: 1\n\ndata: 2\n\n");
}

TEST_F(ExtProcResponse, EchoesAnAnswerThatIsNotAStreamPieceByPieceToo) {
  send_request();
  stream.on_response_headers("200", "application/json", false);
  stream.on_response_body("{\"a\"", false);
  EXPECT_EQ(answers(), (Texts{"response headers", "response body [{\"a\"]"}));
  stream.on_response_body(":1}", true);
  EXPECT_EQ(answers(), Texts{"response body [:1}] end"});
}

TEST_F(ExtProcResponse, SplitsLongPieces) {
  send_request();
  stream.on_response_headers("200", "", false);
  stream.on_response_body(std::string(150'000, 'x'), true);
  EXPECT_EQ(answers(), (Texts{"response headers", "response body [62000]", "response body [62000]",
                              "response body [26000] end"}));
}

TEST_F(ExtProcResponse, DropsEmptyPiecesInTheMiddleAndKeepsAnEmptyEnd) {
  send_request();
  stream.on_response_headers("200", "text/event-stream", false);
  stream.on_response_body("", false);
  EXPECT_EQ(events.log, Texts{"started 200 sse"}) << "nothing is no first byte";
  stream.on_response_body("x", false);
  stream.on_response_body("", true);
  EXPECT_EQ(answers(), (Texts{"response headers", "response body [x]", "response body [] end"}));
}

TEST_F(ExtProcResponse, EndsWithItsHeadersWhenThereIsNoBody) {
  send_request();
  stream.on_response_headers("204", "", true);
  EXPECT_EQ(answers(), Texts{"response headers"});
  EXPECT_EQ(events.log, (Texts{"started 204", "first byte", "ended"}));
}

TEST_F(ExtProcResponse, AnswersTrailersOnce) {
  send_request();
  stream.on_response_headers("200", "text/event-stream", false);
  stream.on_response_body("x", false);
  stream.on_response_trailers();
  EXPECT_EQ(answers(), (Texts{"response headers", "response body [x]", "response trailers"}));
  stream.on_response_trailers();
  stream.on_response_body("y", true);
  stream.on_response_headers("200", "", false);
  EXPECT_EQ(answers(), Texts{}) << "what comes after the end has no place in the gateway's order";
  EXPECT_EQ(events.log, (Texts{"started 200 sse", "first byte", "ended"}));
}

TEST_F(ExtProcResponse, KeepsTheOrderOfAnswersThatPileUp) {
  send_request();
  stream.on_response_headers("200", "text/event-stream", false);
  std::string expected;
  std::string got;
  const auto take = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const auto answer = stream.next();
      ASSERT_TRUE(answer);
      if (const auto* body = std::get_if<BodyAnswer>(&*answer)) got += body->bytes;
    }
  };
  // Two come for each that is taken, so the queue never gets empty.
  for (int i = 0; i < 300; ++i) {
    for (int k = 0; k < 2; ++k) {
      const std::string piece = std::to_string(2 * i + k) + ",";
      expected += piece;
      stream.on_response_body(piece, false);
    }
    take(1);
  }
  take(301);
  EXPECT_EQ(got, expected);
  EXPECT_FALSE(stream.next());
}

TEST_F(ExtProcResponse, EndsWithTrailers) {
  send_request();
  stream.on_response_headers("200", "", false);
  stream.on_response_body("x", false);
  stream.on_response_trailers();
  EXPECT_EQ(answers(), (Texts{"response headers", "response body [x]", "response trailers"}));
  EXPECT_EQ(events.log, (Texts{"started 200", "first byte", "ended"}));
}

TEST_F(ExtProcResponse, EndsOnceHoweverOftenItIsSaid) {
  send_request();
  stream.on_response_headers("200", "", false);
  stream.on_response_body("x", true);
  stream.on_response_body("x", true);
  stream.on_response_trailers();
  EXPECT_EQ(answers(), (Texts{"response headers", "response body [x] end", "response trailers"}));
  EXPECT_EQ(events.log, (Texts{"started 200", "first byte", "ended"}));
}

TEST_F(ExtProcResponse, WorksWithoutARequestHalf) {
  stream.on_response_headers("200", "", false);
  stream.on_response_body("x", true);
  EXPECT_EQ(answers(), (Texts{"response headers", "response body [x] end"}));
  EXPECT_FALSE(stream.ended());
}

TEST_F(ExtProcResponse, WorksWithoutResponseHeaders) {
  stream.on_response_body("x", true);
  EXPECT_EQ(answers(), Texts{"response body [x] end"});
  EXPECT_EQ(events.log, (Texts{"started 0", "first byte", "ended"}));
}

TEST_F(ExtProcResponse, SaysContinueWhereTheGatewayKeepsTheBody) {
  for (const BodyMode mode : {BodyMode::kStreamed, BodyMode::kBuffered, BodyMode::kBufferedPartial}) {
    RecordedEvents own_events;
    ExtProcStream own(limits, own_events);
    own.on_opening({.modes = BodyModes{.response = mode}});
    own.on_response_headers("200", "", false);
    own.on_response_body("", false);
    own.on_response_body("x", true);
    Texts texts;
    while (auto answer = own.next()) texts.push_back(text_of(*answer));
    EXPECT_EQ(texts, (Texts{"response headers", "response continue", "response continue"}));
    EXPECT_EQ(own_events.log, (Texts{"started 200", "first byte", "ended"}));
  }
}

TEST_F(ExtProcResponse, TakesHeadersAsTheFirstByteWhenNoBodiesCome) {
  stream.on_opening({.modes = BodyModes{.response = BodyMode::kNone}});
  send_request();
  stream.on_response_headers("200", "text/event-stream", false);
  EXPECT_EQ(answers(), Texts{"response headers"});
  EXPECT_EQ(events.log, (Texts{"started 200 sse", "first byte"}));
}

TEST_F(ExtProcResponse, RefusesAModeItCannotServe) {
  stream.on_opening({.modes = BodyModes{.response = BodyMode::kGrpc}});
  ASSERT_TRUE(stream.ended());
  EXPECT_EQ(stream.ended()->status, StreamStatus::kFailedPrecondition);
}

TEST_F(ExtProcResponse, PassesOnTheServedEndpoint) {
  send_request();
  stream.on_served_endpoint("10.0.0.8:8000");
  EXPECT_EQ(events.log, Texts{"served 10.0.0.8:8000"});
}

TEST_F(ExtProcResponse, StopsReadingWhileTooMuchWaits) {
  limits.max_backlog = 100 + 2 * sizeof(Answer);
  send_request();
  stream.on_response_headers("200", "", false);
  stream.on_response_body(std::string(100, 'x'), false);
  EXPECT_TRUE(stream.wants_messages());
  stream.on_response_body("y", false);
  EXPECT_FALSE(stream.wants_messages());
  EXPECT_TRUE(stream.next());  // of the headers
  EXPECT_TRUE(stream.next());
  EXPECT_TRUE(stream.wants_messages());
}

// A gateway that sends pieces and takes no answers: each answer takes memory, though nothing is in it.
TEST_F(ExtProcResponse, StopsReadingWhileTooManyEmptyAnswersWait) {
  limits.max_backlog = 64 * 1024;
  stream.on_opening({.modes = BodyModes{.response = BodyMode::kStreamed}});
  send_request();
  stream.on_response_headers("200", "", false);
  int pieces = 0;
  for (; stream.wants_messages() && pieces < 100'000; ++pieces) stream.on_response_body("x", false);
  EXPECT_LT(pieces, 2000);
}

// An engine may answer before it has read the request: both directions go on side by side, each in order.
TEST_F(ExtProcResponse, InterleavesWithARequestThatIsStillGivenBack) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body(std::string(200'000, 'x'), true);
  EXPECT_EQ(text_of(*stream.next()), "request headers 10.0.0.7:8000");
  stream.on_response_headers("400", "application/json", false);
  stream.on_response_body("{}", true);
  const Texts all = answers();
  Texts requests;
  Texts responses;
  for (const auto& text : all) (text.starts_with("request") ? requests : responses).push_back(text);
  EXPECT_EQ(requests, (Texts{"request body [62000]", "request body [62000]", "request body [62000]",
                             "request body [14000] end"}));
  EXPECT_EQ(responses, (Texts{"response headers", "response body [{}] end"}));
  EXPECT_TRUE(all[2].starts_with("response") || all[1].starts_with("response"));
}

}  // namespace
}  // namespace handoff::epp
