#include "epp/server/message_writer.hpp"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "envoy/service/ext_proc/v3/external_processor.pb.h"
#include "epp/ext_proc/routing_headers.hpp"

namespace handoff::epp {
namespace {

namespace wire = envoy::service::ext_proc::v3;
using Option = envoy::config::core::v3::HeaderValueOption;
using google::protobuf::util::MessageDifferencer;

// The generated classes read what the writer writes.
class MessageWriterTest : public ::testing::Test {
 protected:
  wire::ProcessingResponse written(const Answer& answer) {
    const auto encoded = writer.encode(answer);
    std::string bytes;
    for (const auto part : {encoded.head, encoded.body, encoded.tail}) bytes += part;
    EXPECT_EQ(bytes.size(), encoded.size());
    wire::ProcessingResponse message;
    EXPECT_TRUE(message.ParseFromString(bytes));
    EXPECT_EQ(message.ByteSizeLong(), bytes.size()) << "nothing unknown, nothing twice";
    return message;
  }
  static wire::ProcessingResponse route_message(const RouteAnswer& route) {
    wire::ProcessingResponse message;
    auto& common = *message.mutable_request_headers()->mutable_response();
    common.set_clear_route_cache(true);
    const auto set = [&](std::string_view name, const std::string& value) {
      auto& option = *common.mutable_header_mutation()->add_set_headers();
      option.set_append_action(Option::OVERWRITE_IF_EXISTS_OR_ADD);
      option.mutable_header()->set_key(std::string(name));
      option.mutable_header()->set_raw_value(value);
    };
    set("x-gateway-destination-endpoint", route.destination);
    for (const auto& [name, value] : route.set_headers) set(name, value);
    auto& space = (*message.mutable_dynamic_metadata()->mutable_fields())["envoy.lb"];
    (*space.mutable_struct_value()->mutable_fields())["x-gateway-destination-endpoint"].set_string_value(
        route.destination);
    return message;
  }
  // Compares all but what is removed, and returns that.
  std::set<std::string> expect_route(const RouteAnswer& route) {
    auto message = written(HeadersAnswer{.direction = Direction::kRequest, .route = route});
    auto& removed = *message.mutable_request_headers()
                         ->mutable_response()
                         ->mutable_header_mutation()
                         ->mutable_remove_headers();
    std::set<std::string> names(removed.begin(), removed.end());
    EXPECT_EQ(names.size(), static_cast<std::size_t>(removed.size()));
    removed.Clear();
    EXPECT_TRUE(MessageDifferencer::Equals(message, route_message(route))) << message.DebugString();
    return names;
  }

  MessageWriter writer{7};
};

TEST_F(MessageWriterTest, WritesRoutes) {
  std::set<std::string> all;
  for (const auto name : controlled_headers()) all.emplace(name);
  EXPECT_EQ(expect_route({.destination = "10.0.0.7:8000", .set_headers = {}, .replaced_body = nullptr}), all);

  const RouteAnswer pair{.destination = "[fd00::17]:8000",
                         .set_headers = {{kPrefillHeader, "10.0.0.8:8000"}, {kRankHeader, "3"}},
                         .replaced_body = std::make_shared<const std::string>("{}")};
  auto fewer = all;
  fewer.erase(std::string(kPrefillHeader));
  fewer.erase(std::string(kRankHeader));
  fewer.emplace("content-length");
  EXPECT_EQ(expect_route(pair), fewer);
}

// Lengths of one, two and three bytes, on every level.
TEST_F(MessageWriterTest, WritesRoutesOfAnyLength) {
  for (std::size_t size = 1; size < 400; ++size) {
    expect_route({.destination = std::string(size, 'a'), .set_headers = {}, .replaced_body = nullptr});
  }
  for (std::size_t size = 15'900; size < 16'500; size += 7) {
    expect_route({.destination = std::string(size, 'a'), .set_headers = {}, .replaced_body = nullptr});
  }
}

TEST_F(MessageWriterTest, WritesPiecesOfAnyLength) {
  for (const auto direction : {Direction::kRequest, Direction::kResponse}) {
    for (const bool end : {false, true}) {
      for (const int length : {0,   1,   100, 110, 117, 118,    119,    120,    121,    122,    123,   124,
                               125, 126, 127, 128, 129, 16'370, 16'375, 16'380, 16'383, 16'384, 62'000}) {
        const auto size = static_cast<std::size_t>(length);
        SCOPED_TRACE(size);
        const BodyAnswer piece{.direction = direction, .bytes = std::string(size, 'b'), .end_of_stream = end};
        wire::ProcessingResponse expected;
        auto& body = direction == Direction::kRequest ? *expected.mutable_request_body()
                                                      : *expected.mutable_response_body();
        auto& streamed = *body.mutable_response()->mutable_body_mutation()->mutable_streamed_response();
        streamed.set_body(piece.bytes);
        streamed.set_end_of_stream(end);
        EXPECT_TRUE(MessageDifferencer::Equals(written(piece), expected));
      }
    }
  }
}

TEST_F(MessageWriterTest, WritesPlainAnswers) {
  for (const auto direction : {Direction::kRequest, Direction::kResponse}) {
    const bool is_request = direction == Direction::kRequest;
    auto message = written(HeadersAnswer{.direction = direction, .route = std::nullopt});
    EXPECT_TRUE(is_request ? message.request_headers().has_response()
                           : message.response_headers().has_response());
    message = written(BodyAnswer{.direction = direction, .streamed = false, .bytes = {}});
    const auto& body = is_request ? message.request_body() : message.response_body();
    EXPECT_TRUE(body.has_response());
    EXPECT_FALSE(body.response().has_body_mutation());
    message = written(TrailersAnswer{.direction = direction});
    EXPECT_TRUE(is_request ? message.has_request_trailers() : message.has_response_trailers());
  }
}

TEST_F(MessageWriterTest, WritesRefusals) {
  auto message = written(Refusal{.error = EppError::overloaded, .message = {}});
  const auto& immediate = message.immediate_response();
  EXPECT_EQ(static_cast<int>(immediate.status().code()), 429);
  ASSERT_EQ(immediate.headers().set_headers_size(), 2);
  EXPECT_EQ(immediate.headers().set_headers(1).header().key(), "retry-after");
  EXPECT_EQ(immediate.headers().set_headers(1).header().raw_value(), "7");
  EXPECT_NE(immediate.body().find(R"("code":"overloaded")"), std::string::npos);
  message = written(Refusal{.error = EppError::request_too_large, .message = {}});
  EXPECT_EQ(message.immediate_response().headers().set_headers_size(), 1);
}

}  // namespace
}  // namespace handoff::epp
