#include "sidecar/request_rules.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace handoff::sidecar {
namespace {

class RequestRulesTest : public ::testing::Test {
 protected:
  RequestContext& request(const std::string& line, const std::string& fields = {}) {
    request_ = std::make_unique<RequestContext>(budget_);
    text_ = line + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
    EXPECT_EQ(request_->parser.parse_head(text_, {}, request_->head).status, http1::HeadStatus::complete);
    return *request_;
  }
  RequestContext& with_body(const std::string& body, const std::string& fields = {}) {
    auto& made = request("POST /v1/completions", fields);
    EXPECT_TRUE(made.body.append(body));
    return made;
  }
  std::optional<SidecarError> head_error(const std::string& line, const std::string& fields = {}) {
    const auto refusal = check_head(request(line, fields).head);
    return refusal ? std::optional(refusal->error) : std::nullopt;
  }

  MemoryBudget budget_{1024 * 1024};
  SharedPlan plan_;
  std::unique_ptr<RequestContext> request_;
  std::string text_;
};

TEST_F(RequestRulesTest, ServesOrRefusesHeads) {
  EXPECT_EQ(head_error("GET /v1/models"), std::nullopt);
  EXPECT_EQ(head_error("GET http://a/v1/models"), std::nullopt);
  EXPECT_EQ(head_error("CONNECT a:1"), SidecarError::connect_not_supported);
  EXPECT_EQ(head_error("GET v1/models"), SidecarError::bad_request);
  EXPECT_EQ(head_error("GET /", "Connection: upgrade\r\nUpgrade: websocket\r\n"),
            SidecarError::upgrade_not_supported);
  EXPECT_EQ(head_error("GET /", "Connection: upgrade\r\nUpgrade: h2c\r\n"), std::nullopt)
      << "declined by answering";
  EXPECT_EQ(head_error("GET /", "Upgrade: websocket\r\n"), std::nullopt)
      << "not named by Connection: for another hop";
  EXPECT_EQ(head_error("POST /", "Expect: 100-continue\r\n"), std::nullopt);
  EXPECT_EQ(head_error("POST /", "Expect: something\r\n"), SidecarError::expectation_failed);
}

TEST_F(RequestRulesTest, KnowsRoutes) {
  const struct {
    const char* line;
    RouteKind kind;
  } rows[] = {
      {"GET /health", RouteKind::local_health},
      {"HEAD /ready?x=1", RouteKind::local_ready},
      {"POST /health", RouteKind::other},
      {"POST /v1/chat/completions", RouteKind::generation},
      {"POST /v1/chat/completions?stream=1", RouteKind::generation},
      {"POST /v1/%63hat/completions", RouteKind::generation},
      {"GET /v1/chat/completions", RouteKind::other},
      {"POST /v1/chat/completions/", RouteKind::other},
      {"POST /v1/chat%2fcompletions", RouteKind::disguised},
      {"POST /v1/embeddings", RouteKind::other},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.line);
    EXPECT_EQ(classify_route(plan_, request(row.line)), row.kind);
  }
}

TEST_F(RequestRulesTest, ReadsTheRoutingHeader) {
  EXPECT_EQ(read_prefill_hint(plan_, request("POST /v1/completions")), std::nullopt);
  const auto refused = [&](const std::string& fields) {
    const auto refusal = read_prefill_hint(plan_, request("POST /v1/completions", fields));
    return refusal ? refusal->error : SidecarError::bad_request;
  };
  EXPECT_EQ(refused("x-prefiller-host-port: nonsense\r\n"), SidecarError::invalid_epp_metadata);
  EXPECT_EQ(refused("x-prefiller-host-port: a:1\r\nX-Prefiller-Host-Port: a:1\r\n"),
            SidecarError::invalid_epp_metadata);
  EXPECT_EQ(refused("x-prefiller-host-port: a:1\r\n"), SidecarError::pd_adapter_unavailable)
      << "no backend is loaded";
  plan_.allowlist = std::get<PrefillAllowlist>(parse_prefill_allowlist("10.0.0.0/8"));
  EXPECT_EQ(refused("x-prefiller-host-port: 192.168.0.1:80\r\n"), SidecarError::prefill_endpoint_not_allowed);
  EXPECT_EQ(refused("x-prefiller-host-port: 10.1.2.3:80\r\n"), SidecarError::pd_adapter_unavailable);
}

TEST_F(RequestRulesTest, WithoutTheHeaderTheUsualEndpointCounts) {
  plan_.usual_prefill = read_configured_endpoint("http://Context.test:8000/");
  auto& plain = request("POST /v1/completions");
  EXPECT_EQ(read_prefill_hint(plan_, plain), std::nullopt);
  ASSERT_TRUE(std::holds_alternative<PrefillEndpoint>(plain.prefill));
  EXPECT_EQ(std::get<PrefillEndpoint>(plain.prefill).authority(), "context.test:8000");
  EXPECT_EQ(plain.record.prefill_endpoint, "context.test:8000");
  const auto refusal =
      read_prefill_hint(plan_, request("POST /v1/completions", "x-prefiller-host-port: nonsense\r\n"));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->error, SidecarError::invalid_epp_metadata) << "the header is not overruled";
}

TEST_F(RequestRulesTest, TakesABodyForJsonUnlessItsTypeSaysOtherwise) {
  const struct {
    const char* fields;
    bool json;
  } rows[] = {
      {"", true},
      {"Content-Type: \r\n", true},
      {"Content-Type: application/json\r\n", true},
      {"Content-Type: Application/JSON ; charset=utf-8\r\n", true},
      {"Content-Type: application/problem+json\r\n", true},
      {"Content-Type: text/json\r\n", true},
      {"Content-Type: application/octet-stream\r\n", false},
      {"Content-Type: multipart/form-data; boundary=x\r\n", false},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.fields);
    EXPECT_EQ(may_be_json(request("POST /", row.fields).head), row.json);
  }
}

TEST_F(RequestRulesTest, LooksIntoBodies) {
  const std::string_view reserved[] = {"kv_transfer_params"};
  plan_.guard = ForgeryGuard(reserved);
  const struct {
    const char* why;
    std::string body;
    std::string fields;
    std::optional<SidecarError> strict, lax;
  } rows[] = {
      {"a request", R"({"prompt":"x"})", "", std::nullopt, std::nullopt},
      {"no body", "", "", std::nullopt, std::nullopt},
      {"a forged handoff", R"({"kv_transfer_params":{"a":1}})", "", SidecarError::invalid_pd_request,
       SidecarError::invalid_pd_request},
      {"under an escaped name", R"({"kv_transfer\u005fparams":{"a":1}})", "",
       SidecarError::invalid_pd_request, SidecarError::invalid_pd_request},
      {"an empty one harms nobody", R"({"kv_transfer_params":{}})", "", std::nullopt, std::nullopt},
      {"cut off", R"({"prompt":)", "", SidecarError::invalid_pd_request, std::nullopt},
      {"an array is the engine's to refuse", "[1]", "", std::nullopt, std::nullopt},
      {"a byte order mark", "\xEF\xBB\xBF{}", "", SidecarError::invalid_pd_request,
       SidecarError::invalid_pd_request},
      {"coded", "{}", "Content-Encoding: gzip\r\n", SidecarError::unsupported_content_encoding, std::nullopt},
      {"not coded", "{}", "Content-Encoding: identity\r\n", std::nullopt, std::nullopt},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    for (const bool strict : {true, false}) {
      const auto refusal = check_body(plan_, with_body(row.body, row.fields), strict);
      EXPECT_EQ(refusal ? std::optional(refusal->error) : std::nullopt, strict ? row.strict : row.lax)
          << strict;
    }
  }
  plan_.config.allow_client_handoff = true;
  EXPECT_FALSE(check_body(plan_, with_body(R"({"kv_transfer_params":{"a":1}})"), true));
}

}  // namespace
}  // namespace handoff::sidecar
