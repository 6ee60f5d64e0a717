#include "sidecar/token_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <string_view>
#include <vector>

namespace handoff::sidecar {
namespace {

static_assert(std::input_iterator<TokenList::Iterator>);

TEST(TokenList, SplitsAtCommasOutsideQuotes) {
  using Elements = std::vector<std::string_view>;
  struct {
    std::string_view value;
    Elements elements;
    const char* why;
  } const rows[] = {
      {"", {}, "empty"},
      {" \t", {}, "blank"},
      {",", {}, "no element"},
      {"close", {"close"}, "one"},
      {"gzip, chunked", {"gzip", "chunked"}, "two"},
      {"\t a ,b\t,c ", {"a", "b", "c"}, "blanks around"},
      {",,a,, ,b,", {"a", "b"}, "empty elements are skipped"},
      {"a b", {"a b"}, "an inner blank is the caller's matter"},
      {"a;p=\"x, chunked\", b", {"a;p=\"x, chunked\"", "b"}, "comma in quotes"},
      {"a;p=\"x\\\", y\",b", {"a;p=\"x\\\", y\"", "b"}, "escaped quote in quotes"},
      {"a;p=\"x, chunked", {"a;p=\"x, chunked"}, "quote never closed"},
      {"a;p=\"x\\", {"a;p=\"x\\"}, "escape at the very end"},
      {"a\\,b", {"a\\", "b"}, "a backslash escapes only in quotes"},
      {"\"\",a", {"\"\"", "a"}, "empty quotes"},
  };
  for (const auto& row : rows) {
    Elements elements;
    for (const auto element : TokenList(row.value)) elements.push_back(element);
    EXPECT_EQ(elements, row.elements) << row.why;
  }
}

TEST(TokenList, FindsTokensInAnyCase) {
  EXPECT_TRUE(contains_token("Keep-Alive, CLOSE", "close"));
  EXPECT_FALSE(contains_token("closed, not-close", "close"));
  EXPECT_FALSE(contains_token("close;q=1", "close"));
  EXPECT_FALSE(contains_token("\"x, close\"", "close"));
  EXPECT_FALSE(contains_token("", "close"));
}

}  // namespace
}  // namespace handoff::sidecar
