#include "sidecar/prefill_allowlist.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace handoff::sidecar {
namespace {

using testing::HasSubstr;

PrefillAllowlist allowlist(std::string_view setting) {
  auto parsed = parse_prefill_allowlist(setting);
  if (const auto* error = std::get_if<AllowlistError>(&parsed)) ADD_FAILURE() << error->message;
  return std::get<PrefillAllowlist>(parsed);
}

TEST(PrefillAllowlist, AllowsByAddressNetworkNameSuffixAndPort) {
  struct {
    const char* setting;
    const char* endpoint;
    bool allowed;
    const char* why;
  } const rows[] = {
      {"", "anything:1", true, "no list allows all"},
      {" \t", "10.0.0.1:1", true, "a blank list allows all"},
      {"10.0.0.1", "10.0.0.1:8000", true, "address, any port"},
      {"10.0.0.1", "10.0.0.2:8000", false, "another address"},
      {"10.0.0.1", "10.0.0.1.example:8000", false, "a name that starts like the address"},
      {"10.0.0.1:8000", "10.0.0.1:8000", true, "address with its port"},
      {"10.0.0.1:8000", "10.0.0.1:8001", false, "address with another port"},
      {"10.0.0.0/8", "10.255.0.1:1", true, "inside the network"},
      {"10.0.0.0/8", "11.0.0.0:1", false, "just outside the network"},
      {"10.0.0.8/30", "10.0.0.11:1", true, "last of a network within a byte"},
      {"10.0.0.8/30", "10.0.0.12:1", false, "beyond a network within a byte"},
      {"10.0.0.0/8:8000", "10.1.2.3:8000", true, "network with its port"},
      {"10.0.0.0/8:8000", "10.1.2.3:80", false, "network with another port"},
      {"10.0.0.1/32", "10.0.0.1:1", true, "network of one"},
      {"0.0.0.0/0", "203.0.113.9:1", true, "all of IPv4"},
      {"0.0.0.0/0", "[2001:db8::1]:1", false, "all of IPv4 is no IPv6"},
      {"0.0.0.0/0", "prefill:1", false, "names are not looked up"},
      {"fd00::1", "[fd00::1]:1", true, "IPv6 address"},
      {"fd00::1", "[FD00:0:0::1]:1", true, "the same IPv6 address, written differently"},
      {"[fd00::1]", "[fd00::1]:1", true, "IPv6 address in brackets"},
      {"[fd00::1]:8000", "[fd00::1]:8000", true, "IPv6 address with its port"},
      {"[fd00::1]:8000", "[fd00::1]:8001", false, "IPv6 address with another port"},
      {"fd00::1:8000", "[fd00::1]:8000", false, "without brackets the last group is no port"},
      {"fd00::1:8000", "[fd00::1:8000]:1", true, "without brackets the last group is no port"},
      {"fd00::/8", "[fdff::1]:1", true, "IPv6 network"},
      {"fd00::/8", "[fe80::1]:1", false, "outside the IPv6 network"},
      {"[fd00::/8]:8000", "[fdff::1]:8000", true, "IPv6 network with its port"},
      {"[fd00::/8]:8000", "[fdff::1]:1", false, "IPv6 network with another port"},
      {"::/0", "[2001:db8::1]:1", true, "all of IPv6"},
      {"::/0", "10.0.0.1:1", false, "all of IPv6 is no IPv4"},
      {"::/0", "[::ffff:10.0.0.1]:1", false, "mapped IPv4 counts as IPv4"},
      {"10.0.0.0/8", "[::ffff:10.0.0.1]:1", true, "mapped IPv4 counts as IPv4"},
      {"::ffff:10.0.0.1", "10.0.0.1:1", true, "mapped IPv4 in the list"},
      {"::ffff:10.0.0.0/104", "10.9.9.9:1", true, "mapped IPv4 network in the list"},
      {"::ffff:10.0.0.0/104", "11.0.0.0:1", false, "mapped IPv4 network in the list"},
      {"prefill", "prefill:1", true, "name"},
      {"Prefill.LLM", "pREFILL.llm:1", true, "names have no case"},
      {"prefill", "prefill.llm:1", false, "a longer name"},
      {"prefill.llm", "prefill:1", false, "a shorter name"},
      {"prefill:8000", "prefill:8000", true, "name with its port"},
      {"prefill:8000", "prefill:8001", false, "name with another port"},
      {".llm.svc", "a.llm.svc:1", true, "below the suffix"},
      {".LLM.svc", "a.b.llm.SVC:1", true, "deeper below the suffix, any case"},
      {".llm.svc", "llm.svc:1", false, "the suffix itself"},
      {".llm.svc", "evilllm.svc:1", false, "a suffix ends at a label"},
      {".llm.svc", "a.llm.svc.example:1", false, "suffix in the middle"},
      {".llm.svc:80", "a.llm.svc:80", true, "suffix with its port"},
      {".llm.svc:80", "a.llm.svc:81", false, "suffix with another port"},
      {"a , b:1,\tc", "b:1", true, "blanks around elements"},
      {"a,b,c", "c:1", true, "the last element"},
      {"a,b,c", "d:1", false, "no element"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.setting) + " / " + row.endpoint + ": " + row.why);
    const auto endpoint = parse_prefill_endpoint(row.endpoint);
    ASSERT_TRUE(endpoint);
    EXPECT_EQ(allowlist(row.setting).allows(*endpoint), row.allowed);
  }
}

TEST(PrefillAllowlist, NamesTheElementAtFault) {
  struct {
    const char* setting;
    const char* message;
    const char* why;
  } const rows[] = {
      {",", "element 1 '' is empty", "must not read as no list"},
      {"a,", "element 2 '' is empty", "trailing comma"},
      {"a,,b", "element 2 '' is empty", "double comma"},
      {"a b,c,1.2.3.4/33",
       "element 1 'a b' is no IP address, network, host name or .suffix; element 3 '1.2.3.4/33' needs",
       "every wrong element"},
      {"a, b c", "element 2 'b c' is no IP address", "blank within"},
      {"10.0.0.1/8", "'10.0.0.1/8' has address bits beyond", "most likely meant /32"},
      {"10.0.0.0/33", "'10.0.0.0/33' needs a prefix length from 0 to 32", "prefix too long"},
      {"10.0.0.0/", "needs a prefix length from 0 to 32", "no prefix"},
      {"10.0.0.0/08", "needs a prefix length from 0 to 32", "leading zero"},
      {"10.0.0.0/+8", "needs a prefix length from 0 to 32", "sign"},
      {"10.0.0.0/8/8", "needs a prefix length from 0 to 32", "two prefixes"},
      {"10.0.0/8", "is no IPv4 network", "short address"},
      {"prefill/8", "is no IPv4 network", "network of a name"},
      {"10.0.0.256", "is no IP address", "no dotted quad"},
      {"10.0.0.1:0", "needs a port from 1 to 65535", "port zero"},
      {"prefill:", "needs a port from 1 to 65535", "no port"},
      {"prefill:http", "needs a port from 1 to 65535", "named port"},
      {"fd00::/129", "needs a prefix length from 0 to 128", "prefix too long"},
      {"fd00::1/8", "has address bits beyond", "bits beyond the prefix"},
      {"fd00::zz", "is no IPv6 address", "not hexadecimal"},
      {"fe80::1%eth0", "is no IPv6 address", "zone id"},
      {"[fd00::1", "lacks the closing bracket", "open bracket"},
      {"[fd00::]/8", "only a port after the bracket", "prefix outside the brackets"},
      {"[fd00::1]:", "needs a port from 1 to 65535", "no port"},
      {"[10.0.0.1]:80", "is no IPv6 address", "IPv4 in brackets"},
      {"*.example.com", "leading dot", "wildcard of another syntax"},
      {"*", "leading dot", "all is the empty list"},
      {".", "is no name suffix", "suffix of nothing"},
      {"..a", "is no name suffix", "empty label"},
      {"http://prefill:80", "is no IPv6 address", "a URL"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.setting) + ": " + row.why);
    const auto parsed = parse_prefill_allowlist(row.setting);
    const auto* error = std::get_if<AllowlistError>(&parsed);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->message, HasSubstr(row.message));
  }
}

// Against plain 32-bit arithmetic.
TEST(PrefillAllowlist, MatchesNetworksOfEveryLength) {
  std::mt19937 random(7);
  const auto dotted = [](std::uint32_t value) {
    return std::to_string(value >> 24) + '.' + std::to_string(value >> 16 & 255) + '.' +
           std::to_string(value >> 8 & 255) + '.' + std::to_string(value & 255);
  };
  for (unsigned length = 0; length <= 32; ++length) {
    const std::uint32_t mask = length == 0 ? 0 : ~std::uint32_t{0} << (32 - length);
    for (int round = 0; round < 40; ++round) {
      const auto network = static_cast<std::uint32_t>(random()) & mask;
      const auto list = allowlist(dotted(network) + '/' + std::to_string(length));
      // A single flipped bit is the closest neighbour on either side of the border.
      const auto address = network ^ (1u << (random() % 32));
      const auto endpoint = parse_prefill_endpoint(dotted(address) + ":1");
      ASSERT_TRUE(endpoint);
      ASSERT_EQ(list.allows(*endpoint), (address & mask) == network) << dotted(network) << '/' << length;
    }
  }
}

}  // namespace
}  // namespace handoff::sidecar
