// What counts as a host, an address and a port, for the routing header and for the allowlist alike: a host
// that the one accepts and the other reads differently would be a way around the allowlist.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace handoff::sidecar {

/// An IPv4 or IPv6 address as a value. An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) is the IPv4 address:
/// the kernel connects to the same place for both.
class IpAddress {
 public:
  /// 16 bytes in network order; an IPv4 address is kept in its mapped form.
  using Bytes = std::array<std::uint8_t, 16>;

  explicit IpAddress(const Bytes& bytes) : bytes_(bytes) {}

  bool is_v4() const;
  const Bytes& bytes() const { return bytes_; }

  friend bool operator==(const IpAddress&, const IpAddress&) = default;

 private:
  Bytes bytes_;
};

/// Strictly four decimal numbers; no octal, hexadecimal or short forms.
std::optional<IpAddress> parse_ipv4(std::string_view text);

/// An IPv6 literal without brackets. Zone ids (`fe80::1%eth0`) are refused.
std::optional<IpAddress> parse_ipv6(std::string_view text);

/// True for letters, digits, '-', '_' and '.', in non-empty labels of at most 63 bytes that neither start nor
/// end with
/// '-', 253 bytes in all, without a final dot. A last label that reads as a number (`1.2.3`, `0x7f000001`,
/// `2130706433`) is no name: resolvers take such text for an address.
bool is_dns_name(std::string_view text);

/// 1 to 65535 in plain decimal: no sign, blanks or leading zeros.
std::optional<std::uint16_t> parse_port(std::string_view text);

}  // namespace handoff::sidecar
