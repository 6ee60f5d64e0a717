#include "sidecar/leg_head.hpp"

#include <gtest/gtest.h>

#include <array>

#include <string>

#include "sidecar/http1/message_parser.hpp"

namespace handoff::sidecar {
namespace {

class LegHeadTest : public ::testing::Test {
 protected:
  void client_sends(const std::string& fields) {
    text_ = "POST /v1/x?y=1 HTTP/1.1\r\nHost: gateway\r\n" + fields + "\r\n";
    http1::RequestParser parser;
    ASSERT_EQ(parser.parse_head(text_, {}, client_).status, http1::HeadStatus::complete);
  }
  LegHead head() const {
    return {.method = "POST",
            .target = "/v1/x?y=1",
            .engine = &engine_,
            .client = &client_,
            .overrides = {},
            .keep_accept_encoding = true,
            .request_id_if_absent = {}};
  }

  EngineAddress engine_ = make_engine_address("::1", 8001);
  http1::RequestHead client_;
  std::string text_;
};

TEST_F(LegHeadTest, NamesTheEngineAndFramesTheBody) {
  client_sends("Content-Length: 3\r\n");
  EXPECT_EQ(write_leg_head(head(), {.content_length = 7, .chunked = false}),
            "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\ncontent-length: 7\r\n\r\n");
  EXPECT_EQ(write_leg_head(head(), {.content_length = std::nullopt, .chunked = true}),
            "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\ntransfer-encoding: chunked\r\n\r\n");
  EXPECT_EQ(write_leg_head(head(), {}), "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\n\r\n");
}

TEST_F(LegHeadTest, KeepsEndToEndFieldsAsTheyAreAndInOrder) {
  client_sends("Authorization: Bearer k\r\nX-A: 1\r\nx-a: 2\r\n");
  EXPECT_EQ(
      write_leg_head(head(), {}),
      "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\nAuthorization: Bearer k\r\nX-A: 1\r\nx-a: 2\r\n\r\n");
}

TEST_F(LegHeadTest, DropsWhatIsForUsOrForThisHop) {
  client_sends(
      "x-prefiller-host-port: a:1\r\nX-Gateway-Destination-Endpoint: b:2\r\nConnection: X-Mine, "
      "keep-alive\r\n"
      "X-Mine: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: x\r\nExpect: 100-continue\r\n");
  EXPECT_EQ(write_leg_head(head(), {}), "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\n\r\n");
}

TEST_F(LegHeadTest, ReplacesAndRemovesFieldsOfTheBackends) {
  client_sends("X-Data-Parallel-Rank: 1\r\nX-Data-Parallel-Rank: 2\r\n");
  const HeaderOverride replaced[] = {{"x-data-parallel-rank", "7"}};
  auto leg = head();
  leg.overrides = replaced;
  EXPECT_EQ(write_leg_head(leg, {}),
            "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\nx-data-parallel-rank: 7\r\n\r\n");
  const HeaderOverride removed[] = {{"x-data-parallel-rank", ""}};
  leg.overrides = removed;
  EXPECT_EQ(write_leg_head(leg, {}), "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\n\r\n");
}

TEST_F(LegHeadTest, AddsARequestIdOnlyWhereThereIsNone) {
  auto leg = head();
  leg.request_id_if_absent = "ours";
  client_sends("");
  EXPECT_NE(write_leg_head(leg, {}).find("x-request-id: ours\r\n"), std::string::npos);
  client_sends("X-Request-Id: theirs\r\n");
  EXPECT_EQ(write_leg_head(leg, {}).find("ours"), std::string::npos);
  const std::array<HeaderOverride, 1> overrides{{{"x-request-id", "the backend's"}}};
  leg.overrides = overrides;
  for (const std::string client : {"", "X-Request-Id: theirs\r\n"}) {
    client_sends(client);
    EXPECT_EQ(write_leg_head(leg, {}),
              "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\nx-request-id: the backend's\r\n\r\n");
  }
}

TEST_F(LegHeadTest, AsksForNoCodingOfAReplyThatIsRead) {
  client_sends("Accept-Encoding: gzip\r\n");
  EXPECT_NE(write_leg_head(head(), {}).find("gzip"), std::string::npos);
  auto leg = head();
  leg.keep_accept_encoding = false;
  EXPECT_EQ(write_leg_head(leg, {}).find("gzip"), std::string::npos);
}

TEST_F(LegHeadTest, TakesNothingOfTheClientsWhenToldSo) {
  client_sends("Authorization: Bearer k\r\n");
  auto leg = head();
  leg.client = nullptr;
  EXPECT_EQ(write_leg_head(leg, {}), "POST /v1/x?y=1 HTTP/1.1\r\nhost: [::1]:8001\r\n\r\n");
}

}  // namespace
}  // namespace handoff::sidecar
