#include "sidecar/prefill_endpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace handoff::sidecar {
namespace {

using namespace std::string_literals;

TEST(PrefillEndpoint, ReadsHostAndPort) {
  struct {
    const char* value;
    const char* host;
    std::uint16_t port;
    const char* authority;
    bool is_ipv6;
    bool is_ip_literal;
    const char* why;
  } const rows[] = {
      {"prefill:8000", "prefill", 8000, "prefill:8000", false, false, "name"},
      {"Prefill-0.LLM.svc:1", "prefill-0.llm.svc", 1, "prefill-0.llm.svc:1", false, false,
       "names have no case"},
      {"10.0.0.7:65535", "10.0.0.7", 65535, "10.0.0.7:65535", false, true, "IPv4"},
      {"[fd00::1]:8000", "fd00::1", 8000, "[fd00::1]:8000", true, true, "IPv6"},
      {"[FD00::A]:8000", "fd00::a", 8000, "[fd00::a]:8000", true, true, "IPv6 in upper case"},
      {"[::ffff:10.0.0.7]:80", "::ffff:10.0.0.7", 80, "[::ffff:10.0.0.7]:80", true, true, "mapped IPv4"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    const auto endpoint = parse_prefill_endpoint(row.value);
    ASSERT_TRUE(endpoint);
    EXPECT_EQ(endpoint->host(), row.host);
    EXPECT_EQ(endpoint->port(), row.port);
    EXPECT_EQ(endpoint->authority(), row.authority);
    EXPECT_EQ(endpoint->is_ipv6(), row.is_ipv6);
    EXPECT_EQ(endpoint->is_ip_literal(), row.is_ip_literal);
  }
}

TEST(PrefillEndpoint, RefusesEverythingElse) {
  struct {
    std::string value;
    const char* why;
  } const rows[] = {
      {"", "empty"},
      {" ", "blank"},
      {":", "nothing around the colon"},
      {":8000", "no host"},
      {"prefill", "no port"},
      {"prefill:", "empty port"},
      {"prefill:0", "port zero"},
      {"prefill:65536", "port too large"},
      {"prefill:-1", "negative port"},
      {"prefill:+80", "signed port"},
      {"prefill:08000", "leading zero"},
      {"prefill:80a", "port with letters"},
      {"prefill:8000:8000", "two ports"},
      {"a:1,b:2", "a list"},
      {"a:1,", "a list of one"},
      {"a,b:1", "a comma in the host"},
      {" prefill:8000", "leading blank"},
      {"prefill:8000 ", "final blank"},
      {"prefill: 8000", "inner blank"},
      {"prefill:8000\t", "tab"},
      {"user@prefill:8000", "user info"},
      {"user:secret@prefill:8000", "user info with a password"},
      {"http://prefill:8000", "scheme"},
      {"//prefill:8000", "network path"},
      {"prefill:8000/", "path"},
      {"prefill:8000/v1", "path"},
      {"prefill/v1:8000", "path before the port"},
      {"prefill:8000?x", "query"},
      {"prefill:8000#x", "fragment"},
      {"pre%66ill:8000", "percent encoding"},
      {"pre\\fill:8000", "backslash"},
      {"fd00::1:8000", "IPv6 without brackets"},
      {"[fd00::1]", "IPv6 without port"},
      {"[fd00::1]8000", "no colon after the bracket"},
      {"[fd00::1:8000", "bracket not closed"},
      {"fd00::1]:8000", "bracket not opened"},
      {"[[fd00::1]]:8000", "brackets twice"},
      {"[]:8000", "empty brackets"},
      {"[:8000", "bracket alone"},
      {"[10.0.0.7]:8000", "IPv4 in brackets"},
      {"[prefill]:8000", "name in brackets"},
      {"[fe80::1%eth0]:8000", "zone id"},
      {"[v1.fe80::a]:8000", "a literal of the future"},
      {"10.0.0.256:8000", "no dotted quad"},
      {"10.0.0:8000", "short address"},
      {"2130706433:8000", "an address as one number"},
      {"prefill.:8000", "final dot"},
      {".prefill:8000", "leading dot"},
      {"pre..fill:8000", "empty label"},
      {"pr\xc3\xa9"
       "fill:8000",
       "not ASCII"},
      {"prefill:8000\0"s, "NUL"},
      {"pre\0fill:8000"s, "NUL in the host"},
      {"prefill\r\n:8000", "line break"},
      {std::string(254, 'a') + ":8000", "name too long"},
      {std::string(1 << 20, ':'), "long and odd"},
  };
  for (const auto& row : rows) EXPECT_FALSE(parse_prefill_endpoint(row.value)) << row.why;
}

// Whatever is accepted reads the same again, and holds none of the bytes that mean something elsewhere.
TEST(PrefillEndpoint, AcceptsOnlyWhatItCanWriteBack) {
  std::mt19937 random(20240607);
  const std::string alphabet = "ab0189.-_:[]%@,/ \tfx\0\x7f\xff"s;
  std::uniform_int_distribution<std::size_t> pick(0, alphabet.size() - 1);
  std::uniform_int_distribution<std::size_t> length(0, 14);
  int accepted = 0;
  for (int round = 0; round < 300'000; ++round) {
    std::string value(length(random), ' ');
    std::generate(value.begin(), value.end(), [&] { return alphabet[pick(random)]; });
    if (round % 2 == 0) value += ":80";
    const auto endpoint = parse_prefill_endpoint(value);
    if (!endpoint) continue;
    ++accepted;
    ASSERT_EQ(value.find_first_of("%@,/ \t\0\x7f\xff"s), std::string::npos) << value;
    ASSERT_EQ(endpoint->authority(), value);
    const std::string host(endpoint->host());
    ASSERT_EQ((endpoint->is_ipv6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint->port()),
              value);
  }
  EXPECT_GT(accepted, 1000);
}

TEST(PrefillEndpoint, SettingsMayBeUrls) {
  for (const std::string_view text : {"a:1", "http://a:1", "http://a:1/"}) {
    const auto endpoint = read_configured_endpoint(text);
    ASSERT_TRUE(endpoint) << text;
    EXPECT_EQ(endpoint->authority(), "a:1");
  }
  for (const std::string_view text : {"", "a", "a:1/", "http://", "http://a", "http://a:1//", "http://a:1/x",
                                      "https://a:1", "HTTP://a:1"}) {
    EXPECT_FALSE(read_configured_endpoint(text)) << text;
  }
}

TEST(PrefillHint, WantsAtMostOneFieldLine) {
  using Lines = std::vector<std::string_view>;
  EXPECT_TRUE(std::holds_alternative<NoPrefillEndpoint>(parse_prefill_hint(Lines{})));
  EXPECT_TRUE(std::holds_alternative<PrefillEndpoint>(parse_prefill_hint(Lines{"a:1"})));
  EXPECT_TRUE(std::holds_alternative<InvalidPrefillEndpoint>(parse_prefill_hint(Lines{""})));
  EXPECT_TRUE(std::holds_alternative<InvalidPrefillEndpoint>(parse_prefill_hint(Lines{"a:1,b:2"})));
  EXPECT_TRUE(std::holds_alternative<InvalidPrefillEndpoint>(parse_prefill_hint(Lines{"a:1", "a:1"})));
  EXPECT_TRUE(std::holds_alternative<InvalidPrefillEndpoint>(parse_prefill_hint(Lines{"a:1", ""})));
}

}  // namespace
}  // namespace handoff::sidecar
