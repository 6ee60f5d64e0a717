#include "stream_fixture.hpp"

namespace handoff::epp {
namespace {

using ExtProcRequest = ExtProcFixture;

TEST_F(ExtProcRequest, SaysNothingBeforeTheBodyIsComplete) {
  stream.on_request_headers(head(), false, std::nullopt);
  EXPECT_EQ(answers(), Texts{});
  stream.on_request_body("{\"a\"", false);
  EXPECT_EQ(answers(), Texts{});
  EXPECT_EQ(events.log, Texts{});
}

TEST_F(ExtProcRequest, AnswersHeadersThenBody) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{\"a\"", false);
  stream.on_request_body(":1}", true);
  EXPECT_EQ(*events.request.body, "{\"a\":1}");
  EXPECT_EQ(answers(), (Texts{"request headers 10.0.0.7:8000", "request body [{\"a\":1}] end"}));
  EXPECT_FALSE(stream.ended());
  EXPECT_EQ(buffered, 0U);
}

TEST_F(ExtProcRequest, WaitsForAPlanThatTakesItsTime) {
  events.answer_at_once = false;
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", true);
  EXPECT_EQ(answers(), Texts{});
  EXPECT_TRUE(stream.route(to("[fd00::7]:8000")));
  EXPECT_EQ(answers(), (Texts{"request headers [fd00::7]:8000", "request body [{}] end"}));
  EXPECT_FALSE(stream.route(to("10.0.0.8:8000"))) << "a second route";
}

TEST_F(ExtProcRequest, AnswersARequestWithoutBodyByItsHeadersOnly) {
  stream.on_request_headers(head(), true, Texts{"10.0.0.7"});
  EXPECT_EQ(events.request.body, nullptr);
  EXPECT_EQ(events.request.subset, Texts{"10.0.0.7"});
  EXPECT_EQ(answers(), Texts{"request headers 10.0.0.7:8000"});
}

TEST_F(ExtProcRequest, EndsAnEmptyBodyWithOneEmptyPiece) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("", true);
  EXPECT_EQ(answers(), (Texts{"request headers 10.0.0.7:8000", "request body [] end"}));
}

TEST_F(ExtProcRequest, TakesAnEmptyLastPieceAsTheEnd) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", false);
  stream.on_request_body("", true);
  EXPECT_EQ(answers(), (Texts{"request headers 10.0.0.7:8000", "request body [{}] end"}));
}

TEST_F(ExtProcRequest, TakesTrailersAsTheEndOfTheBody) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", false);
  stream.on_request_trailers();
  EXPECT_EQ(answers(), (Texts{"request headers 10.0.0.7:8000", "request body [{}]", "request trailers"}));
}

TEST_F(ExtProcRequest, AnswersTrailersWithoutAnyBody) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_trailers();
  EXPECT_EQ(answers(), (Texts{"request headers 10.0.0.7:8000", "request trailers"}));
}

TEST_F(ExtProcRequest, AnswersTrailersThatComeAfterTheEnd) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", true);
  EXPECT_EQ(answers().size(), 2U);
  stream.on_request_trailers();
  stream.on_request_trailers();
  EXPECT_EQ(answers(), Texts{"request trailers"});
}

// Envoy repeats the last piece of long bodies (gateway-api-inference-extension #2988).
TEST_F(ExtProcRequest, IgnoresWhatFollowsTheFirstEnd) {
  events.answer_at_once = false;
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", true);
  stream.on_request_body("{}", true);
  EXPECT_TRUE(stream.route(to("10.0.0.7:8000")));
  stream.on_request_body("{}", true);
  EXPECT_EQ(answers(), (Texts{"request headers 10.0.0.7:8000", "request body [{}] end"}));
  stream.on_request_body("x", true);
  EXPECT_EQ(answers(), Texts{});
  EXPECT_EQ(events.log, Texts{"request"});
}

TEST_F(ExtProcRequest, GivesBackALongBodyInPiecesOfAtMost62000Bytes) {
  for (const std::size_t size : {std::size_t{61'999}, std::size_t{62'000}, std::size_t{62'001},
                                 std::size_t{124'000}, std::size_t{5'000'000}}) {
    SCOPED_TRACE(size);
    RecordedEvents own_events;
    ExtProcStream own(limits, own_events);
    own_events.stream = &own;
    std::string body(size, ' ');
    for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<char>('a' + i % 23);
    own.on_request_headers(head(), false, std::nullopt);
    for (std::size_t at = 0; at < size; at += 16'384) {
      own.on_request_body(body.substr(at, 16'384), at + 16'384 >= size);
    }
    std::string back;
    std::size_t pieces = 0;
    bool ended = false;
    while (auto answer = own.next()) {
      const auto* piece = std::get_if<BodyAnswer>(&*answer);
      if (piece == nullptr) continue;
      EXPECT_FALSE(ended);
      EXPECT_LE(piece->bytes.size(), 62'000U);
      back += piece->bytes;
      ended = piece->end_of_stream;
      ++pieces;
    }
    EXPECT_TRUE(ended);
    EXPECT_TRUE(back == body);
    EXPECT_EQ(pieces, (size + 61'999) / 62'000);
    EXPECT_EQ(buffered, 0U);
  }
}

TEST_F(ExtProcRequest, GivesBackAReplacedBody) {
  events.answer_at_once = false;
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", true);
  RouteAnswer answer = to("10.0.0.7:8000");
  answer.replaced_body = std::make_shared<const std::string>("{\"x\":1}");
  EXPECT_TRUE(stream.route(std::move(answer)));
  EXPECT_EQ(answers(), (Texts{"request headers 10.0.0.7:8000", "request body [{\"x\":1}] end"}));
}

TEST_F(ExtProcRequest, RefusesAnAnnouncedSizeBeforeTheBodyComes) {
  limits.max_request_body = 10;
  for (const char* size : {"11", "99999999999999999999999999"}) {
    RecordedEvents own_events;
    ExtProcStream own(limits, own_events);
    own.on_request_headers(head({{"content-length", size}}), false, std::nullopt);
    const auto answer = own.next();
    ASSERT_TRUE(answer);
    EXPECT_EQ(text_of(*answer), "refused 413");
    EXPECT_TRUE(own.ended());
    EXPECT_EQ(own.ended()->status, StreamStatus::kOk);
    EXPECT_EQ(own_events.log, Texts{});
  }
}

TEST_F(ExtProcRequest, RefusesABodyThatGrowsTooLarge) {
  limits.max_request_body = 10;
  stream.on_request_headers(head({{"content-length", "3"}}), false, std::nullopt);
  stream.on_request_body("12345", false);
  stream.on_request_body("678901", false);
  stream.on_request_body("more", true);
  EXPECT_EQ(answers(), Texts{"refused 413"});
  EXPECT_EQ(events.log, Texts{});
  EXPECT_EQ(buffered, 0U);
}

TEST_F(ExtProcRequest, TakesABodyOfExactlyTheLimit) {
  limits.max_request_body = 10;
  stream.on_request_headers(head({{"content-length", "10"}}), false, std::nullopt);
  stream.on_request_body("1234567890", true);
  EXPECT_EQ(answers().size(), 2U);
}

TEST_F(ExtProcRequest, RefusesABodyWhenAllBodiesTogetherAreTooLarge) {
  limits.max_buffered = 100;
  buffered = 95;
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("123456", false);
  EXPECT_EQ(answers(), Texts{"refused 503"});
  EXPECT_EQ(buffered, 95U);
}

TEST_F(ExtProcRequest, RefusesABodyThatDoesNotComeInTime) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{", false);
  stream.on_request_timeout();
  EXPECT_EQ(answers(), Texts{"refused 408"});
}

TEST_F(ExtProcRequest, GivesBackItsShareOfTheBudgetWhenItGoes) {
  {
    RecordedEvents own_events;
    own_events.answer_at_once = false;
    ExtProcStream own(limits, own_events);
    own.on_request_headers(head(), false, std::nullopt);
    own.on_request_body("123456", true);
    EXPECT_EQ(buffered, 6U);
  }
  EXPECT_EQ(buffered, 0U);
}

TEST_F(ExtProcRequest, EndsAfterARefusal) {
  events.answer_at_once = false;
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", true);
  EXPECT_TRUE(stream.refuse({.error = EppError::overloaded, .message = {}}));
  EXPECT_FALSE(stream.ended()) << "the answer was not taken yet";
  EXPECT_EQ(answers(), Texts{"refused 429"});
  ASSERT_TRUE(stream.ended());
  EXPECT_EQ(stream.ended()->status, StreamStatus::kOk);
  EXPECT_FALSE(stream.route(to("10.0.0.7:8000")));
  EXPECT_FALSE(stream.refuse({}));
}

TEST_F(ExtProcRequest, DemandsFullDuplexForTheRequestBody) {
  for (const BodyMode mode : {BodyMode::kNone, BodyMode::kStreamed, BodyMode::kBuffered,
                              BodyMode::kBufferedPartial, BodyMode::kGrpc}) {
    RecordedEvents own_events;
    ExtProcStream own(limits, own_events);
    own.on_opening({.modes = BodyModes{.request = mode}});
    own.on_request_headers(head(), false, std::nullopt);
    EXPECT_FALSE(own.next());
    ASSERT_TRUE(own.ended());
    EXPECT_EQ(own.ended()->status, StreamStatus::kFailedPrecondition);
    EXPECT_NE(own.ended()->message.find("FULL_DUPLEX_STREAMED"), std::string::npos);
  }
}

TEST_F(ExtProcRequest, FailsWhatIsOutOfOrder) {
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_headers(head(), false, std::nullopt);
  EXPECT_EQ(answers(), Texts{});
  ASSERT_TRUE(stream.ended());
  EXPECT_EQ(stream.ended()->status, StreamStatus::kInvalidArgument);
}

TEST_F(ExtProcRequest, SaysWhatIsMissingWhenHeadersAreNotSent) {
  stream.on_request_body("{}", true);
  ASSERT_TRUE(stream.ended());
  EXPECT_EQ(stream.ended()->status, StreamStatus::kFailedPrecondition);
  EXPECT_NE(stream.ended()->message.find("request_header_mode"), std::string::npos);
}

// Envoy answers by itself (another filter, a limit) while the request is still being planned.
TEST_F(ExtProcRequest, IsAbandonedWhenAResponseComesBeforeTheRoute) {
  events.answer_at_once = false;
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", true);
  stream.on_response_headers("503", "text/plain", false);
  EXPECT_EQ(events.log, (Texts{"request", "abandoned", "started 503"}));
  EXPECT_FALSE(stream.route(to("10.0.0.7:8000")));
  EXPECT_FALSE(stream.refuse({}));
  EXPECT_EQ(answers(), Texts{"response headers"});
}

TEST_F(ExtProcRequest, SaysNothingInObservabilityMode) {
  events.answer_at_once = false;
  stream.on_opening({.modes = BodyModes{.request = BodyMode::kStreamed, .response = BodyMode::kStreamed},
                     .observability = true});
  stream.on_request_headers(head(), false, std::nullopt);
  stream.on_request_body("{}", true);
  EXPECT_TRUE(stream.route(to("10.0.0.7:8000")));
  stream.on_response_headers("200", "text/event-stream", false);
  stream.on_response_body("data", true);
  EXPECT_EQ(answers(), Texts{});
  EXPECT_FALSE(stream.ended());
  EXPECT_EQ(events.log, (Texts{"request", "started 200 sse", "first byte", "ended"}));
  EXPECT_EQ(buffered, 0U);
}

TEST_F(ExtProcRequest, LetsARefusedRequestPassInObservabilityMode) {
  events.answer_at_once = false;
  stream.on_opening({.modes = std::nullopt, .observability = true});
  stream.on_request_headers(head(), true, std::nullopt);
  EXPECT_TRUE(stream.refuse({.error = EppError::no_ready_endpoint, .message = {}}));
  stream.on_response_headers("200", "", true);
  EXPECT_EQ(answers(), Texts{});
  EXPECT_FALSE(stream.ended());
}

}  // namespace
}  // namespace handoff::epp
