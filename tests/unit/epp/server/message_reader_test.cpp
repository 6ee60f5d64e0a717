#include "epp/server/message_reader.hpp"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>

#include "envoy/service/ext_proc/v3/external_processor.pb.h"
#include "tests/unit/epp/ext_proc/stream_fixture.hpp"
#include "tests/unit/epp/selection/test_seed.hpp"

namespace handoff::epp {
namespace {

namespace wire = envoy::service::ext_proc::v3;
using envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::CodedInputStream;

// The generated classes write what the reader reads.
class MessageReaderTest : public ::testing::Test {
 protected:
  struct Exchange {
    Exchange() { events.stream = &stream; }
    ExtProcLimits limits;
    RecordedEvents events;
    ExtProcStream stream{limits, events};
    bool is_first = true;
  };

  bool deliver(Exchange& exchange, const std::string& bytes) {
    CodedInputStream input(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                           static_cast<int>(bytes.size()));
    return reader.deliver(input, std::exchange(exchange.is_first, false), exchange.stream);
  }
  // As it comes in pieces of memory.
  bool deliver_in_pieces(Exchange& exchange, const std::string& bytes, int piece) {
    ArrayInputStream pieces(bytes.data(), static_cast<int>(bytes.size()), piece);
    CodedInputStream input(&pieces);
    input.PushLimit(static_cast<int>(bytes.size()));
    return reader.deliver(input, std::exchange(exchange.is_first, false), exchange.stream);
  }

  static void add(wire::HttpHeaders& headers, const std::string& name, const std::string& value,
                  bool raw = true) {
    auto& header = *headers.mutable_headers()->add_headers();
    header.set_key(name);
    raw ? header.set_raw_value(value) : header.set_value(value);
  }
  static wire::ProcessingRequest request_headers(bool end_of_stream) {
    wire::ProcessingRequest message;
    auto& headers = *message.mutable_request_headers();
    add(headers, ":method", "POST", false);
    add(headers, ":path", "/v1/chat/completions");
    add(headers, "X-Request-Id", "r-1");
    add(headers, "x-empty", "");
    headers.set_end_of_stream(end_of_stream);
    return message;
  }
  static google::protobuf::Value& subset_value(wire::ProcessingRequest& message) {
    auto& space = (*message.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb.subset_hint"];
    (*message.mutable_metadata_context()->mutable_filter_metadata())["other"] = {};
    return (*space.mutable_fields())["x-gateway-destination-endpoint-subset"];
  }
  std::optional<std::vector<std::string>> subset_of(const wire::ProcessingRequest& message) {
    Exchange exchange;
    EXPECT_TRUE(deliver(exchange, message.SerializeAsString()));
    return exchange.events.request.subset;
  }

  MessageReader reader;
};

TEST_F(MessageReaderTest, ReadsHeadersOfEitherEncoding) {
  Exchange exchange;
  ASSERT_TRUE(deliver(exchange, request_headers(true).SerializeAsString()));
  EXPECT_EQ(exchange.events.log, std::vector<std::string>{"request"});
  const HeaderBlock& headers = exchange.events.request.headers;
  ASSERT_EQ(headers.size(), 4U);
  EXPECT_EQ(headers.first(":method"), "POST");
  EXPECT_EQ(headers.first(":path"), "/v1/chat/completions");
  EXPECT_EQ(headers.first("x-request-id"), "r-1") << "names are told in lower case";
  EXPECT_EQ(headers.first("x-empty"), "");
  EXPECT_EQ(exchange.events.request.subset, std::nullopt);
  EXPECT_EQ(exchange.events.request.body, nullptr);
}

TEST_F(MessageReaderTest, PrefersTheRawValue) {
  wire::ProcessingRequest message;
  auto& header = *message.mutable_request_headers()->mutable_headers()->add_headers();
  header.set_key("a");
  header.set_value("text");
  header.set_raw_value("raw");
  message.mutable_request_headers()->set_end_of_stream(true);
  Exchange exchange;
  ASSERT_TRUE(deliver(exchange, message.SerializeAsString()));
  EXPECT_EQ(exchange.events.request.headers.first("a"), "raw");
}

TEST_F(MessageReaderTest, ReadsAWholeExchangeHoweverItIsCut) {
  std::string body;
  for (int i = 0; i < 5000; ++i) body += std::to_string(i);
  auto head = request_headers(false);
  subset_value(head).set_string_value("10.0.0.7,10.0.0.8");
  wire::ProcessingRequest first;
  first.mutable_request_body()->set_body(body.substr(0, 9000));
  wire::ProcessingRequest rest;
  rest.mutable_request_body()->set_body(body.substr(9000));
  wire::ProcessingRequest trailers;
  trailers.mutable_request_trailers()->mutable_trailers()->add_headers()->set_key("t");
  wire::ProcessingRequest response;
  add(*response.mutable_response_headers(), ":status", "201", false);
  add(*response.mutable_response_headers(), "content-type", "text/event-stream");
  auto& served = (*response.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb"];
  (*served.mutable_fields())["x-gateway-destination-endpoint-served"].set_string_value("10.0.0.8:1");
  wire::ProcessingRequest chunk;
  chunk.mutable_response_body()->set_body("data: 1\n\n");
  wire::ProcessingRequest end;
  end.mutable_response_trailers();

  for (const int piece : {1, 2, 3, 7, 64, 1000, 1 << 20}) {
    SCOPED_TRACE(piece);
    Exchange exchange;
    for (const auto* message : {&head, &first, &rest, &trailers, &response, &chunk, &end}) {
      ASSERT_TRUE(deliver_in_pieces(exchange, message->SerializeAsString(), piece));
    }
    const auto& request = exchange.events.request;
    EXPECT_EQ(request.headers.first("x-request-id"), "r-1");
    EXPECT_EQ(request.subset, (std::vector<std::string>{"10.0.0.7", "10.0.0.8"}));
    ASSERT_NE(request.body, nullptr);
    EXPECT_EQ(*request.body, body);
    EXPECT_EQ(exchange.events.response, "data: 1\n\n");
    EXPECT_EQ(exchange.events.log, (std::vector<std::string>{"request", "served 10.0.0.8:1",
                                                             "started 201 sse", "first byte", "ended"}));
  }
}

TEST_F(MessageReaderTest, ReadsSubsets) {
  auto message = request_headers(true);
  EXPECT_EQ(subset_of(message), std::nullopt);
  auto& list = *subset_value(message).mutable_list_value();
  EXPECT_EQ(subset_of(message), std::vector<std::string>{}) << "an empty list allows nothing";
  list.add_values()->set_string_value("10.0.0.7:1");
  list.add_values()->set_string_value("[::1]:2");
  EXPECT_EQ(subset_of(message), (std::vector<std::string>{"10.0.0.7:1", "[::1]:2"}));
  subset_value(message).set_string_value("a, b,");
  EXPECT_EQ(subset_of(message), (std::vector<std::string>{"a", " b"}));
  subset_value(message).set_number_value(3);
  EXPECT_EQ(subset_of(message), std::vector<std::string>{}) << "what is no text allows nothing";
}

TEST_F(MessageReaderTest, ReadsModesFromTheFirstMessageOnly) {
  auto message = request_headers(true);
  message.mutable_protocol_config()->set_request_body_mode(ProcessingMode::BUFFERED);
  Exchange wrong;
  ASSERT_TRUE(deliver(wrong, message.SerializeAsString()));
  ASSERT_TRUE(wrong.stream.ended());
  EXPECT_EQ(wrong.stream.ended()->status, StreamStatus::kFailedPrecondition);

  message.mutable_protocol_config()->set_request_body_mode(ProcessingMode::FULL_DUPLEX_STREAMED);
  message.mutable_protocol_config()->set_response_body_mode(ProcessingMode::STREAMED);
  Exchange right;
  ASSERT_TRUE(deliver(right, message.SerializeAsString()));
  EXPECT_FALSE(right.stream.ended());
  EXPECT_EQ(right.stream.response_mode(), BodyMode::kStreamed);

  message.set_observability_mode(true);
  Exchange silent;
  ASSERT_TRUE(deliver(silent, message.SerializeAsString()));
  EXPECT_TRUE(silent.stream.observes_only());
  EXPECT_FALSE(silent.stream.next());
}

TEST_F(MessageReaderTest, SkipsWhatItDoesNotKnow) {
  Exchange exchange;
  std::string bytes = "\xa2\x06\x03xyz";            // field 100, bytes
  bytes += std::string("\x0d\x01\x02\x03\x04", 5);  // field 1, four bytes
  EXPECT_TRUE(deliver(exchange, bytes));
  EXPECT_TRUE(exchange.events.log.empty());
  EXPECT_TRUE(deliver(exchange, ""));
  EXPECT_TRUE(deliver(exchange, bytes + request_headers(true).SerializeAsString() + bytes));
  EXPECT_EQ(exchange.events.log, std::vector<std::string>{"request"});
}

TEST_F(MessageReaderTest, TakesTheLastOfSeveralParts) {
  Exchange exchange;
  wire::ProcessingRequest body;
  body.mutable_request_body()->set_body("ignored");
  ASSERT_TRUE(deliver(exchange, body.SerializeAsString() + request_headers(true).SerializeAsString()));
  EXPECT_EQ(exchange.events.log, std::vector<std::string>{"request"});
}

// Whatever is cut off or changed: it is refused or read, and nothing is handed over of what was refused.
// What a message says in two parts is one: bytes one after the other are how protobuf merges.
TEST_F(MessageReaderTest, JoinsMetadataAndModesInSeveralParts) {
  wire::ProcessingRequest first;
  subset_value(first).mutable_list_value();  // nothing is allowed
  first.mutable_protocol_config()->set_request_body_mode(ProcessingMode::FULL_DUPLEX_STREAMED);
  wire::ProcessingRequest second = request_headers(true);
  (*second.mutable_metadata_context()->mutable_filter_metadata())["another"] = {};
  second.mutable_protocol_config()->set_response_body_mode(ProcessingMode::STREAMED);
  const std::string bytes = first.SerializeAsString() + second.SerializeAsString();
  for (const int piece : {1, 7, 4096}) {
    Exchange exchange;
    ASSERT_TRUE(deliver_in_pieces(exchange, bytes, piece));
    EXPECT_EQ(exchange.events.request.subset, std::vector<std::string>()) << piece;
  }
}

TEST_F(MessageReaderTest, TakesNoLengthThatNeedsMoreThan31Bits) {
  Exchange exchange;
  const std::string length = "\x82\x80\x80\x80\x10";  // 2^32 + 2
  EXPECT_FALSE(deliver(exchange, "\x12" + length + std::string("\x18\x01", 2)));
}

TEST_F(MessageReaderTest, TakesManyHeadersButNotAnyNumber) {
  Exchange exchange;
  wire::ProcessingRequest message;
  for (int i = 0; i < 16'384; ++i) add(*message.mutable_request_headers(), "a", "b");
  EXPECT_TRUE(deliver(exchange, message.SerializeAsString()));
  add(*message.mutable_request_headers(), "a", "b");
  Exchange another;
  EXPECT_FALSE(deliver(another, message.SerializeAsString()));
}

TEST_F(MessageReaderTest, SurvivesDamage) {
  auto head = request_headers(false);
  subset_value(head).mutable_list_value()->add_values()->set_string_value("10.0.0.7");
  head.mutable_protocol_config()->set_request_body_mode(ProcessingMode::FULL_DUPLEX_STREAMED);
  wire::ProcessingRequest body;
  body.mutable_request_body()->set_body(std::string(300, 'x'));
  body.mutable_request_body()->set_end_of_stream(true);
  test::Random random(test::test_seed());
  for (const auto& message : {head.SerializeAsString(), body.SerializeAsString()}) {
    for (std::size_t size = 0; size < message.size(); ++size) {
      Exchange whole;
      Exchange cut;
      const std::string part = message.substr(0, size);
      EXPECT_EQ(deliver(whole, part), deliver_in_pieces(cut, part, 5)) << size;
    }
    for (int i = 0; i < 20'000; ++i) {
      std::string changed = message;
      for (auto count = 1 + random.below(4); count > 0; --count) {
        changed[random.below(changed.size())] = static_cast<char>(random.next());
      }
      Exchange whole;
      Exchange cut;
      const bool delivered = deliver(whole, changed);
      EXPECT_EQ(delivered, deliver_in_pieces(cut, changed, 1 + static_cast<int>(random.below(40))));
      if (!delivered) {
        EXPECT_TRUE(whole.stream.receives_request() == false && whole.events.log.empty());
      }
    }
  }
}

// A length is only a claim.
TEST_F(MessageReaderTest, ReservesNothingForLengthsThatAreNotThere) {
  Exchange exchange;
  // A body of 2 GB - 1 within a message of as much.
  const std::string claim("\x22\xff\xff\xff\xff\x07\x0a\xf0\xff\xff\xff\x07xyz", 15);
  EXPECT_FALSE(deliver(exchange, claim));
  EXPECT_FALSE(deliver_in_pieces(exchange, claim, 4));
  const std::string inner("\x22\x08\x0a\xf0\xff\xff\xff\x07xy", 10);
  EXPECT_FALSE(deliver(exchange, inner));
  EXPECT_FALSE(deliver_in_pieces(exchange, inner, 4));
}

}  // namespace
}  // namespace handoff::epp
