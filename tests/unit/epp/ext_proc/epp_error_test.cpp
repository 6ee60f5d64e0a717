#include "epp/ext_proc/epp_error.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

namespace handoff::epp {
namespace {

TEST(EppError, HasOpenAisShape) {
  const auto body = nlohmann::json::parse(error_body(EppError::overloaded, "wait \"a\" \xff bit"));
  EXPECT_EQ(body["error"]["type"], "rate_limit_error");
  EXPECT_EQ(body["error"]["code"], "overloaded");
  EXPECT_EQ(body["error"]["message"], "wait \"a\" \xef\xbf\xbd bit");
  EXPECT_TRUE(body["error"]["param"].is_null());
}

TEST(EppError, SaysItsOwnTextWithoutAnother) {
  for (const EppErrorRow& row : all_epp_errors()) {
    const auto body = nlohmann::json::parse(error_body(row.error, {}));
    EXPECT_EQ(body["error"]["message"], std::string(row.message));
    EXPECT_EQ(body["error"]["type"], row.status == 429  ? "rate_limit_error"
                                     : row.status < 500 ? "invalid_request_error"
                                                        : "server_error");
    EXPECT_EQ(may_be_retried(row.error), row.status == 429 || row.status == 503);
  }
}

TEST(EppError, NamesEachOnce) {
  std::set<std::string_view> codes;
  for (const EppErrorRow& row : all_epp_errors()) EXPECT_TRUE(codes.insert(row.code).second) << row.code;
}

}  // namespace
}  // namespace handoff::epp
