// The routing header `x-prefiller-host-port`: its strict grammar and the value that comes out of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "sidecar/host_grammar.hpp"

namespace handoff::sidecar {

/// Where the prefill engine of one request is. Only made by parse_prefill_endpoint(), so holding one means
/// that the grammar was checked. A plain value; names and hexadecimal digits are in lower case, so that equal
/// endpoints written differently share their connections.
class PrefillEndpoint {
 public:
  /// The host without brackets, as a resolver or a socket address wants it.
  std::string_view host() const { return std::string_view(authority_).substr(is_ipv6() ? 1 : 0, host_size_); }
  std::uint16_t port() const { return port_; }

  /// `host:port` with brackets around an IPv6 literal, as URLs and the Host header want it.
  const std::string& authority() const { return authority_; }

  bool is_ip_literal() const { return address_.has_value(); }
  /// True when the host was written as an IPv6 literal; an IPv4-mapped one is still written in brackets.
  bool is_ipv6() const { return authority_.front() == '['; }
  /// The address of an IP literal.
  const std::optional<IpAddress>& address() const { return address_; }

  friend bool operator==(const PrefillEndpoint& a, const PrefillEndpoint& b) {
    return a.authority_ == b.authority_;
  }

 private:
  friend std::optional<PrefillEndpoint> parse_prefill_endpoint(std::string_view field_value);

  PrefillEndpoint(std::string_view field_value, std::size_t host_size, std::uint16_t port,
                  std::optional<IpAddress> address);

  std::string authority_;
  std::size_t host_size_;
  std::uint16_t port_;
  std::optional<IpAddress> address_;
};

/// Reads one field value, from which the HTTP parser has already trimmed the surrounding blanks: `host:port`
/// with an explicit port from 1 to 65535; the host is a DNS name, a dotted quad or an IPv6 literal in
/// brackets. Anything else, such as a list, user info, a scheme, a path or a percent sign, is no endpoint.
std::optional<PrefillEndpoint> parse_prefill_endpoint(std::string_view field_value);

/// Reads an endpoint from a setting: the same, or as the URL `http://host:port`, with or without a `/` behind
/// it.
std::optional<PrefillEndpoint> read_configured_endpoint(std::string_view text);

/// No field line: the request runs on the local engine alone.
struct NoPrefillEndpoint {};
/// The field lines don't say exactly one endpoint. Carries nothing: the value is never shown to anyone.
struct InvalidPrefillEndpoint {};

using PrefillHint = std::variant<NoPrefillEndpoint, InvalidPrefillEndpoint, PrefillEndpoint>;

/// Reads all field lines of the header of one request; more than one is invalid, even when they are equal.
PrefillHint parse_prefill_hint(std::span<const std::string_view> field_lines);

}  // namespace handoff::sidecar
