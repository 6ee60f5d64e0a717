// Which prefill endpoints the sidecar may connect to (DYN_SIDECAR_PREFILL_ALLOWLIST).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sidecar/prefill_endpoint.hpp"

namespace handoff::sidecar {

/// Why a setting is no allowlist, in words for the operator that name the element at fault.
struct AllowlistError {
  std::string message;
};

/// An immutable list of allowed endpoints. Empty (the default) allows all.
///
/// The setting is a comma list; each element may end in `:port` and then allows that port only:
///   `10.0.0.7`  `10.0.0.0/8`  `10.0.0.7:8000`         an IPv4 address or network
///   `fd00::1`  `fd00::/8`  `[fd00::/8]:8000`          an IPv6 one; with a port it stands in brackets
///   `prefill.llm.svc`  `prefill.llm.svc:8000`         a host name, in any case of letters
///   `.llm.svc`  `.llm.svc:8000`                       every name below, at any depth, but not `llm.svc`
///
/// Names are compared as text and never looked up: an address in the header is matched by addresses and
/// networks alone, a name by names and suffixes alone. Whoever controls the DNS zone of an allowed name
/// decides where it leads. An IPv4-mapped IPv6 address counts as the IPv4 address, on both sides; no IPv6
/// network holds IPv4 addresses.
class PrefillAllowlist {
 public:
  PrefillAllowlist() = default;

  bool allows_all() const { return rules_.empty(); }
  bool allows(const PrefillEndpoint& endpoint) const;

 private:
  friend std::variant<PrefillAllowlist, AllowlistError> parse_prefill_allowlist(std::string_view setting);

  struct Network {
    IpAddress address;
    int prefix_length;  // of the 128 bits of IpAddress::bytes()
  };
  struct Name {
    std::string lower_case;
  };
  struct Suffix {
    std::string lower_case;  // with the leading dot
  };
  using Hosts = std::variant<Network, Name, Suffix>;
  struct Rule {
    Hosts hosts;
    std::optional<std::uint16_t> port;
  };
  class Parser;

  static bool matches(const Hosts& hosts, const PrefillEndpoint& endpoint);

  std::vector<Rule> rules_;
};

/// Reads the setting; only blanks, or nothing, make an empty list. An empty element is an error, as `,` must
/// not silently allow all, and so is a network with bits beyond its prefix, which is usually a typo of the
/// prefix.
std::variant<PrefillAllowlist, AllowlistError> parse_prefill_allowlist(std::string_view setting);

}  // namespace handoff::sidecar
