#include "sidecar/sidecar_error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>

namespace handoff::sidecar {
namespace {

using namespace std::string_literals;
using nlohmann::json;

TEST(SidecarError, HasOneStatusAndCodePerFailure) {
  using enum SidecarError;
  struct {
    SidecarError error;
    unsigned status;
    const char* code;
    const char* type;
  } const rows[] = {
      {bad_request, 400, "bad_request", "invalid_request_error"},
      {request_head_too_large, 431, "request_head_too_large", "invalid_request_error"},
      {expectation_failed, 417, "expectation_failed", "invalid_request_error"},
      {connect_not_supported, 501, "connect_not_supported", "server_error"},
      {upgrade_not_supported, 501, "upgrade_not_supported", "server_error"},
      {http_version_not_supported, 505, "http_version_not_supported", "server_error"},
      {invalid_pd_request, 400, "invalid_pd_request", "invalid_request_error"},
      {pd_request_timeout, 408, "pd_request_timeout", "invalid_request_error"},
      {pd_request_too_large, 413, "pd_request_too_large", "invalid_request_error"},
      {unsupported_content_encoding, 415, "unsupported_content_encoding", "invalid_request_error"},
      {invalid_epp_metadata, 502, "invalid_epp_metadata", "server_error"},
      {prefill_endpoint_not_allowed, 403, "prefill_endpoint_not_allowed", "permission_error"},
      {pd_adapter_unavailable, 501, "pd_adapter_unavailable", "server_error"},
      {prefill_upstream_unavailable, 502, "prefill_upstream_unavailable", "server_error"},
      {prefill_upstream_timeout, 504, "prefill_upstream_timeout", "server_error"},
      {prefill_deadline_exceeded, 504, "prefill_deadline_exceeded", "server_error"},
      {prefill_upstream_error, 502, "prefill_upstream_error", "server_error"},
      {prefill_response_too_large, 502, "prefill_response_too_large", "server_error"},
      {invalid_prefill_handoff, 502, "invalid_prefill_handoff", "server_error"},
      {missing_prefill_handoff, 502, "missing_prefill_handoff", "server_error"},
      {decode_upstream_error, 502, "decode_upstream_error", "server_error"},
      {decode_upstream_timeout, 504, "decode_upstream_timeout", "server_error"},
      {auxiliary_upstream_error, 502, "auxiliary_upstream_error", "server_error"},
      {auxiliary_upstream_timeout, 504, "auxiliary_upstream_timeout", "server_error"},
      {request_cancelled, 502, "request_cancelled", "server_error"},
      {sidecar_overloaded, 503, "sidecar_overloaded", "server_error"},
      {backend_failed, 500, "backend_failed", "server_error"},
  };
  // Equal sizes and no error twice: every error is in the table above.
  std::set<SidecarError> seen;
  for (const auto& row : rows) {
    SCOPED_TRACE(row.code);
    EXPECT_TRUE(seen.insert(row.error).second);
    EXPECT_EQ(row_of(row.error).error, row.error);
    EXPECT_EQ(row_of(row.error).status, row.status);
    EXPECT_EQ(row_of(row.error).code, row.code);
    EXPECT_EQ(error_type(row.status), row.type);
  }
  EXPECT_EQ(seen.size(), all_sidecar_errors().size());
}

TEST(SidecarError, SaysSomethingForEveryFailure) {
  std::set<std::string_view> codes;
  for (const auto& row : all_sidecar_errors()) {
    EXPECT_TRUE(codes.insert(row.code).second) << row.code;
    EXPECT_FALSE(row.message.empty()) << row.code;
    EXPECT_FALSE(row.when.empty()) << row.code;
    // A client's mistake is nothing that an operator has to look at; a wrong endpoint is the EPP's or the
    // operator's.
    if (row.status < 500 && row.error != SidecarError::prefill_endpoint_not_allowed) {
      EXPECT_EQ(row.severity, ErrorSeverity::info) << row.code;
    }
    EXPECT_TRUE(!row.may_carry_retry_after || row.status >= 500) << row.code;
  }
}

TEST(SidecarError, WritesOpenAiShapedBodies) {
  EXPECT_EQ(error_body(SidecarError::invalid_epp_metadata),
            R"({"error":{"message":"Invalid EPP routing metadata","type":"server_error","param":null,)"
            R"("code":"invalid_epp_metadata"}})");
  EXPECT_EQ(error_body(SidecarError::invalid_pd_request, 400, "no", "kv_transfer_params"),
            R"({"error":{"message":"no","type":"invalid_request_error","param":"kv_transfer_params",)"
            R"("code":"invalid_pd_request"}})");
  EXPECT_EQ(json::parse(error_body(SidecarError::prefill_upstream_error, 403, "x"))["error"]["type"],
            "permission_error");
}

TEST(SidecarError, WritesValidJsonWhateverTheMessageHolds) {
  struct {
    std::string message;
    std::string read_back;
    const char* why;
  } const rows[] = {
      {"a \"quoted\" \\ text", "a \"quoted\" \\ text", "quotes and backslashes"},
      {"a\r\n\t\0b"s, "a\r\n\t\0b"s, "control characters and NUL"},
      {"\xe2\x82\xac", "\xe2\x82\xac", "UTF-8"},
      {"\xff", "\xef\xbf\xbd", "never UTF-8"},
      {"a\xe2\x82", "a\xef\xbf\xbd", "UTF-8 cut short"},
      {"", "", "empty"},
  };
  for (const auto& row : rows) {
    const auto body = json::parse(error_body("code", "type", row.message, row.message), nullptr, false);
    ASSERT_FALSE(body.is_discarded()) << row.why;
    EXPECT_EQ(body["error"]["message"], row.read_back) << row.why;
    EXPECT_EQ(body["error"]["param"], row.read_back) << row.why;
  }
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::string message(random() % 12, '\0');
    for (char& c : message) c = static_cast<char>(random());
    ASSERT_TRUE(json::accept(error_body("code", "type", message))) << round;
  }
}

TEST(SidecarError, DocumentsEveryCode) {
  const std::string table = error_table_markdown();
  for (const auto& row : all_sidecar_errors()) {
    EXPECT_THAT(table, testing::HasSubstr("| " + std::to_string(row.status) + " | `" + std::string(row.code) +
                                          "` |"));
  }
}

}  // namespace
}  // namespace handoff::sidecar
