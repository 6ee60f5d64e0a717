#include "sidecar/prefill_allowlist.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "sidecar/ascii.hpp"

namespace handoff::sidecar {
namespace {

constexpr int kAddressBits = 128;
constexpr int kV4Bits = 32;

bool has_bit(const IpAddress& address, int bit) {
  return (address.bytes()[static_cast<std::size_t>(bit / 8)] >> (7 - bit % 8) & 1) != 0;
}

bool has_bits_beyond(const IpAddress& address, int prefix_length) {
  for (int bit = prefix_length; bit < kAddressBits; ++bit) {
    if (has_bit(address, bit)) return true;
  }
  return false;
}

bool has_prefix(const IpAddress& address, const IpAddress& network, int prefix_length) {
  const auto whole_bytes = prefix_length / 8;
  if (!std::equal(network.bytes().begin(), network.bytes().begin() + whole_bytes, address.bytes().begin()))
    return false;
  for (int bit = whole_bytes * 8; bit < prefix_length; ++bit) {
    if (has_bit(address, bit) != has_bit(network, bit)) return false;
  }
  return true;
}

std::optional<int> parse_prefix_length(std::string_view text, int bits) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  unsigned length = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, length);
  if (error != std::errc{} || stop != end || length > static_cast<unsigned>(bits)) return std::nullopt;
  return static_cast<int>(length);
}

}  // namespace

/// Reads one element. Each step returns nothing after it has said why.
class PrefillAllowlist::Parser {
 public:
  explicit Parser(std::string_view element) : element_(element) {}

  std::optional<Rule> parse() {
    if (element_.empty()) return fail("is empty");
    if (element_.front() == '[') return parse_bracketed();
    const auto colon = element_.find(':');
    if (colon == std::string_view::npos) return rule(parse_hosts(element_), std::nullopt);
    if (element_.find(':', colon + 1) != std::string_view::npos)
      return rule(parse_v6(element_), std::nullopt);
    return rule_with_port(parse_hosts(element_.substr(0, colon)), element_.substr(colon + 1));
  }

  const std::string& reason() const { return reason_; }

 private:
  std::nullopt_t fail(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
    return std::nullopt;
  }

  std::optional<Rule> rule(std::optional<Hosts> hosts, std::optional<std::uint16_t> port) {
    if (!hosts) return std::nullopt;
    return Rule{*std::move(hosts), port};
  }

  std::optional<Rule> rule_with_port(std::optional<Hosts> hosts, std::string_view port_text) {
    const auto port = parse_port(port_text);
    if (!port) return fail("needs a port from 1 to 65535 after the colon");
    return rule(std::move(hosts), port);
  }

  std::optional<Rule> parse_bracketed() {
    const auto close = element_.find(']');
    if (close == std::string_view::npos) return fail("lacks the closing bracket");
    auto hosts = parse_v6(element_.substr(1, close - 1));
    const std::string_view rest = element_.substr(close + 1);
    if (rest.empty()) return rule(std::move(hosts), std::nullopt);
    if (rest.front() != ':')
      return fail("may have only a port after the bracket; a network is written [fd00::/8]:8000");
    return rule_with_port(std::move(hosts), rest.substr(1));
  }

  std::optional<Hosts> parse_hosts(std::string_view text) {
    if (const auto slash = text.find('/'); slash != std::string_view::npos) {
      const auto address = parse_ipv4(text.substr(0, slash));
      if (!address) return fail("is no IPv4 network");
      return network(*address, parse_prefix_length(text.substr(slash + 1), kV4Bits), kV4Bits);
    }
    if (const auto address = parse_ipv4(text)) return Network{*address, kAddressBits};
    if (text.starts_with('*'))
      return fail("has a wildcard; a suffix is written with a leading dot, as in .example.com");
    if (text.starts_with('.')) {
      if (!is_dns_name(text.substr(1))) return fail("is no name suffix");
      return Suffix{to_ascii_lower(text)};
    }
    if (!is_dns_name(text)) return fail("is no IP address, network, host name or .suffix");
    return Name{to_ascii_lower(text)};
  }

  std::optional<Hosts> parse_v6(std::string_view text) {
    const auto slash = text.find('/');
    const auto address = parse_ipv6(text.substr(0, slash));
    if (!address)
      return fail("is no IPv6 address or network; with a port it stands in brackets, as in [fd00::1]:8000");
    if (slash == std::string_view::npos) return Network{*address, kAddressBits};
    return network(*address, parse_prefix_length(text.substr(slash + 1), kAddressBits), kAddressBits);
  }

  std::optional<Hosts> network(const IpAddress& address, std::optional<int> prefix_length, int bits) {
    if (!prefix_length) return fail("needs a prefix length from 0 to " + std::to_string(bits));
    const int length = kAddressBits - bits + *prefix_length;
    if (has_bits_beyond(address, length)) return fail("has address bits beyond its prefix length");
    return Network{address, length};
  }

  std::string_view element_;
  std::string reason_;
};

bool PrefillAllowlist::matches(const Hosts& hosts, const PrefillEndpoint& endpoint) {
  if (const auto* network = std::get_if<Network>(&hosts)) {
    const auto& address = endpoint.address();
    return address && address->is_v4() == network->address.is_v4() &&
           has_prefix(*address, network->address, network->prefix_length);
  }
  if (endpoint.is_ip_literal()) return false;
  // The endpoint's host is in lower case already.
  if (const auto* name = std::get_if<Name>(&hosts)) return endpoint.host() == name->lower_case;
  const std::string& suffix = std::get<Suffix>(hosts).lower_case;
  return endpoint.host().size() > suffix.size() && endpoint.host().ends_with(suffix);
}

bool PrefillAllowlist::allows(const PrefillEndpoint& endpoint) const {
  return rules_.empty() || std::any_of(rules_.begin(), rules_.end(), [&](const Rule& rule) {
           return (!rule.port || *rule.port == endpoint.port()) && matches(rule.hosts, endpoint);
         });
}

std::variant<PrefillAllowlist, AllowlistError> parse_prefill_allowlist(std::string_view setting) {
  PrefillAllowlist allowlist;
  if (trim_blanks(setting).empty()) return allowlist;
  std::string problems;
  for (std::size_t number = 1;; ++number) {
    const auto comma = setting.find(',');
    const std::string_view element = trim_blanks(setting.substr(0, comma));
    PrefillAllowlist::Parser parser(element);
    if (auto rule = parser.parse()) {
      allowlist.rules_.push_back(*std::move(rule));
    } else {
      if (!problems.empty()) problems += "; ";
      problems += "element " + std::to_string(number) + " '" + std::string(element) + "' " + parser.reason();
    }
    if (comma == std::string_view::npos) break;
    setting.remove_prefix(comma + 1);
  }
  if (!problems.empty()) return AllowlistError{std::move(problems)};
  return allowlist;
}

}  // namespace handoff::sidecar
