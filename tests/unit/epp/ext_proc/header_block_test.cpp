#include "epp/ext_proc/header_block.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

TEST(HeaderBlock, FindsByLowerCaseName) {
  HeaderBlock headers;
  headers.add("X-Request-Id", "A b");
  headers.add(":path", "/v1");
  EXPECT_EQ(headers.first("x-request-id"), "A b");
  EXPECT_EQ(headers.first(":path"), "/v1");
  EXPECT_EQ(headers.first("x-request"), std::nullopt);
  EXPECT_EQ(headers.size(), 2U);
  EXPECT_EQ(headers.name(0), "x-request-id");
}

TEST(HeaderBlock, TakesTheLastThatIsNotBlank) {
  HeaderBlock headers;
  headers.add("x-tenant-id", "one");
  headers.add("x-tenant-id", " two\t");
  headers.add("x-tenant-id", "  ");
  EXPECT_EQ(headers.last_filled("x-tenant-id"), "two");
  EXPECT_EQ(headers.first("x-tenant-id"), "one");
  EXPECT_EQ(headers.last_filled("other"), std::nullopt);
}

}  // namespace
}  // namespace handoff::epp
