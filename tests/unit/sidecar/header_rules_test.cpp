#include "sidecar/header_rules.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>

namespace handoff::sidecar {
namespace {

TEST(HeaderRules, ClassifiesEveryNameInAnyCase) {
  using enum HeaderClass;
  struct {
    std::string name;
    HeaderClass header_class;
    const char* why;
  } const rows[] = {
      {"accept-encoding", accept_encoding, "decides whether replies can be read"},
      {"content-encoding", content_encoding, "decides whether bodies can be read"},
      {"content-type", content_type, "decides whether the body is JSON"},
      {"retry-after", retry_after, "goes with an engine's failure"},
      {"x-request-id", x_request_id, "for logs"},
      {"connection", connection, "per hop"},
      {"content-length", content_length, "the sender's"},
      {"expect", expect, "answered by us"},
      {"host", host, "the sender's"},
      {"transfer-encoding", transfer_encoding, "per hop"},
      {"upgrade", upgrade, "per hop"},
      {"http2-settings", hop_by_hop, "goes with an upgrade to HTTP/2"},
      {"keep-alive", hop_by_hop, "per hop"},
      {"proxy-authenticate", hop_by_hop, "per hop"},
      {"proxy-authorization", hop_by_hop, "a secret between client and proxy"},
      {"proxy-connection", hop_by_hop, "a misspelt Connection of old clients"},
      {"te", hop_by_hop, "per hop"},
      {"trailer", hop_by_hop, "per hop"},
      {"x-prefiller-host-port", x_prefiller_host_port, "the routing header"},
      {"x-data-parallel-host-port", orchestration, "exact name"},
      {"x-encoder-hosts-ports", orchestration, "exact name"},
      {"x-gateway-model-name-rewrite", orchestration, "exact name"},
      {"x-kv-cache-source-host-port", orchestration, "exact name"},
      {"x-gateway-destination-endpoint", orchestration, "prefix, alone"},
      {"x-gateway-destination-endpoint-served", orchestration, "prefix"},
      {"x-gateway-destination-endpoint-subset", orchestration, "prefix"},
      {"x-gateway-inference-objective", orchestration, "prefix"},
      {"x-gateway-inference-fairness-id", orchestration, "prefix"},
      {"x-gateway-inference-", orchestration, "prefix, alone"},
      {"x-dynamo-worker-instance-id", orchestration, "prefix"},
      {"x-dynamo-routing-mode", orchestration, "prefix"},
      {"x-dynamo-anything-new", orchestration, "prefix"},
      {"authorization", end_to_end, "the client's credentials are for the engine"},
      {"traceparent", end_to_end, "traces go on"},
      {"x-api-key", end_to_end, "credentials of /v1/messages"},
      {"content-md5", end_to_end, "as long as a known name, same ends"},
      {"x-dynamo", end_to_end, "shorter than the prefix"},
      {"x-gateway-destination", end_to_end, "shorter than the prefix"},
      {"x-gateway-api-version", end_to_end, "a gateway header that is none of ours"},
      {"x-prefiller-host-ports", end_to_end, "longer than the name"},
      {"x_prefiller_host_port", end_to_end, "underscores make another name"},
      {"prefix-x-dynamo-a", end_to_end, "the prefix is inside"},
      {"t", end_to_end, "one letter"},
      {"x", end_to_end, "one letter"},
      {"", end_to_end, "no name"},
      {std::string(255 + 4, 'h'), end_to_end, "a length that wraps"},
      {"ho\x13t", end_to_end, "a byte that differs from 's' in more than case"},
      {"h\x4fst\x01", end_to_end, "control character"},
      {"accept_encoding", end_to_end, "'_' and DEL must not fold"},
      {"x\rdynamo\r", end_to_end, "CR becomes '-' when case is folded carelessly"},
  };
  for (const auto& row : rows) {
    std::string upper = row.name;
    std::transform(upper.begin(), upper.end(), upper.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    EXPECT_EQ(classify_header(row.name), row.header_class) << row.name << ": " << row.why;
    EXPECT_EQ(classify_header(upper), row.header_class) << upper << ": " << row.why;
  }
}

TEST(HeaderRules, ForwardsOnlyWhatIsEndToEnd) {
  using enum HeaderClass;
  for (const auto header_class :
       {end_to_end, accept_encoding, content_encoding, content_type, retry_after, x_request_id}) {
    EXPECT_TRUE(is_forwarded(header_class));
  }
  for (const auto header_class : {connection, content_length, expect, host, transfer_encoding, upgrade,
                                  hop_by_hop, x_prefiller_host_port, orchestration}) {
    EXPECT_FALSE(is_forwarded(header_class));
  }
}

TEST(ConnectionOptions, ReadsTheOptionsOfAllFields) {
  ConnectionOptions options;
  EXPECT_FALSE(options.close() || options.keep_alive() || options.upgrade());
  EXPECT_TRUE(options.add("Keep-Alive,, UPGRADE"));
  EXPECT_TRUE(options.keep_alive() && options.upgrade());
  EXPECT_FALSE(options.close());
  EXPECT_TRUE(options.add("close"));
  EXPECT_TRUE(options.close());
}

TEST(ConnectionOptions, RemovesTheFieldsThatAreNamed) {
  ConnectionOptions options;
  EXPECT_TRUE(options.add("close, X-Hop"));
  EXPECT_TRUE(options.add("x-other, x-hop"));
  EXPECT_TRUE(options.removes("x-hop"));
  EXPECT_TRUE(options.removes("X-OTHER"));
  EXPECT_FALSE(options.removes("x-ho"));
  EXPECT_FALSE(options.removes("close"));
  EXPECT_FALSE(options.removes(""));
}

TEST(ConnectionOptions, NeverRemovesWhatOthersRelyOn) {
  struct {
    const char* name;
    const char* why;
  } const rows[] = {
      {"Content-Type", "the forgery guard looks at JSON bodies"},
      {"Content-Encoding", "the forgery guard can't read an encoded body"},
      {"Content-Length", "framing"},
      {"Host", "framing"},
      {"Authorization", "the engine checks it"},
      {"X-API-Key", "the engine checks it"},
      {"Cookie", "credentials"},
      {"X-Forwarded-For", "the gateway set it"},
      {"X-Forwarded-Client-Cert", "the gateway set it"},
      {"Forwarded", "the gateway set it"},
      {"X-Request-Id", "logs are joined by it"},
      {"traceparent", "traces are joined by it"},
  };
  for (const auto& row : rows) {
    ConnectionOptions options;
    EXPECT_TRUE(options.add(row.name));
    EXPECT_FALSE(options.removes(row.name)) << row.name << ": " << row.why;
  }
}

TEST(ConnectionOptions, RefusesToRememberManyNames) {
  std::string names = "x-0";
  for (std::size_t i = 1; i < ConnectionOptions::kMaxNamedFields; ++i) names += ", x-" + std::to_string(i);
  ConnectionOptions options;
  EXPECT_TRUE(options.add(names));
  EXPECT_TRUE(options.add(names)) << "names that are known already cost nothing";
  EXPECT_TRUE(options.add("close, keep-alive, te, trailer, authorization"))
      << "nor do names that need no removal";
  EXPECT_FALSE(options.add("one-more"));
}

}  // namespace
}  // namespace handoff::sidecar
