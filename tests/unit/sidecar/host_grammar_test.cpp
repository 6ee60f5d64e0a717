#include "sidecar/host_grammar.hpp"

#include <gtest/gtest.h>

#include <string>

namespace handoff::sidecar {
namespace {

using namespace std::string_literals;

TEST(HostGrammar, ReadsIpv4OnlyAsDottedQuad) {
  struct {
    std::string text;
    bool valid;
    const char* why;
  } const rows[] = {
      {"10.0.0.1", true, "plain"},
      {"255.255.255.255", true, "largest"},
      {"256.0.0.1", false, "a number above 255"},
      {"10.0.1", false, "inet_aton's short form"},
      {"010.0.0.1", false, "octal for some, decimal for others"},
      {"0x0a.0.0.1", false, "hexadecimal"},
      {"10.0.0.1.", false, "final dot"},
      {" 10.0.0.1", false, "blank"},
      {"10.0.0.1\0"s, false, "a NUL must not end the text early"},
      {"", false, "empty"},
      {std::string(400, '1'), false, "longer than any literal"},
  };
  for (const auto& row : rows)
    EXPECT_EQ(parse_ipv4(row.text).has_value(), row.valid) << row.text << ": " << row.why;
}

TEST(HostGrammar, ReadsIpv6WithoutBracketsAndZones) {
  struct {
    std::string text;
    bool valid;
    const char* why;
  } const rows[] = {
      {"::1", true, "compressed"},
      {"fd00:1:2:3:4:5:6:7", true, "full"},
      {"FD00::A", true, "upper case"},
      {"::ffff:10.0.0.1", true, "mapped IPv4"},
      {"ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255", true, "the longest literal"},
      {"fe80::1%eth0", false, "a zone means nothing on another host"},
      {"fe80::1%25eth0", false, "a zone as URIs spell it"},
      {"1::2::3", false, "two gaps"},
      {"12345::", false, "five digits"},
      {"[::1]", false, "brackets belong to the caller"},
      {"10.0.0.1", false, "IPv4"},
      {"::1\0"s, false, "a NUL must not end the text early"},
      {"", false, "empty"},
  };
  for (const auto& row : rows)
    EXPECT_EQ(parse_ipv6(row.text).has_value(), row.valid) << row.text << ": " << row.why;
}

TEST(HostGrammar, TakesMappedIpv6ForItsIpv4) {
  EXPECT_EQ(parse_ipv6("::ffff:10.0.0.1"), parse_ipv4("10.0.0.1"));
  EXPECT_EQ(parse_ipv6("::ffff:a00:1"), parse_ipv4("10.0.0.1"));
  EXPECT_TRUE(parse_ipv6("::ffff:10.0.0.1")->is_v4());
  EXPECT_FALSE(parse_ipv6("::10.0.0.1")->is_v4());
}

TEST(HostGrammar, ReadsDnsNames) {
  const std::string label63(63, 'a');
  const std::string name253 = label63 + "." + label63 + "." + label63 + "." + std::string(61, 'a');
  struct {
    std::string text;
    bool valid;
    const char* why;
  } const rows[] = {
      {"prefill", true, "one label"},
      {"vllm-prefill-0.vllm-prefill.llm.svc.cluster.local", true, "a pod of a stateful set"},
      {"Prefill_A.example", true, "upper case and underscore"},
      {"3com.example", true, "a label may start with a digit"},
      {"10-0-0-1.pods.example", true, "looks like an address, isn't"},
      {"0xg", true, "0x and no number"},
      {label63, true, "63 bytes in a label"},
      {label63 + "a", false, "64 bytes in a label"},
      {name253, true, "253 bytes"},
      {name253 + "a", false, "254 bytes"},
      {"", false, "empty"},
      {".", false, "no label"},
      {".a", false, "leading dot"},
      {"a.", false, "final dot"},
      {"a..b", false, "empty label"},
      {"-a", false, "label starts with a hyphen"},
      {"a-.b", false, "label ends with a hyphen"},
      {"a b", false, "blank"},
      {"a%41", false, "percent"},
      {"pr\xc3\xa9"
       "fill",
       false, "not ASCII"},
      {"2130706433", false, "resolvers read it as 127.0.0.1"},
      {"0x7f000001", false, "resolvers read it as 127.0.0.1"},
      {"0x", false, "resolvers read it as 0.0.0.0"},
      {"127.1", false, "resolvers read it as 127.0.0.1"},
      {"1.2.3.256", false, "a dotted quad that is none"},
      {"a.1", false, "ends in a number"},
  };
  for (const auto& row : rows) EXPECT_EQ(is_dns_name(row.text), row.valid) << row.text << ": " << row.why;
}

TEST(HostGrammar, ReadsPortsAsPlainDecimal) {
  for (unsigned port = 1; port <= 65535; ++port) ASSERT_EQ(parse_port(std::to_string(port)), port);
  for (const auto& text : {""s, "0"s, "65536"s, "99999999999999999999"s, "08000"s, "+80"s, "-1"s, " 80"s,
                           "80 "s, "8x"s, "80\0"s, "\xd9\xa3"s}) {
    EXPECT_FALSE(parse_port(text)) << text;
  }
}

}  // namespace
}  // namespace handoff::sidecar
