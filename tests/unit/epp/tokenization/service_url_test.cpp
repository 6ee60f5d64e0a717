#include "epp/tokenization/service_url.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

TEST(ServiceUrl, KeepsAPrefixAndDropsTheRest) {
  const auto url = parse_service_url("http://render.example:8000/a/b/?x=1#y");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "render.example");
  EXPECT_EQ(url->port, "8000");
  EXPECT_EQ(url->authority, "render.example:8000");
  EXPECT_EQ(url->prefix, "/a/b");
}

TEST(ServiceUrl, KnowsBracketsAndTheDefaultPort) {
  EXPECT_EQ(parse_service_url("http://[::1]:81")->host, "::1");
  EXPECT_EQ(parse_service_url("http://[::1]:81")->authority, "[::1]:81");
  EXPECT_EQ(parse_service_url("http://x")->port, "80");
  EXPECT_EQ(parse_service_url("http://x/")->prefix, "");
}

TEST(ServiceUrl, RefusesWhatItCanNotReach) {
  for (const char* url : {"", "x", "https://x", "ftp://x", "http://", "http:///a", "http://x:0",
                          "http://x:65536", "http://x:", "http://x:1x", "http://u@x", "http://[::1",
                          "http://[::1]x", "http://a b", "http://x/\r\ny"})
    EXPECT_FALSE(parse_service_url(url)) << url;
}

}  // namespace
}  // namespace handoff::epp
