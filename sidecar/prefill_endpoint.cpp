#include "sidecar/prefill_endpoint.hpp"

#include <utility>

#include "sidecar/ascii.hpp"

namespace handoff::sidecar {

PrefillEndpoint::PrefillEndpoint(std::string_view field_value, std::size_t host_size, std::uint16_t port,
                                 std::optional<IpAddress> address)
    : authority_(to_ascii_lower(field_value)), host_size_(host_size), port_(port), address_(address) {}

std::optional<PrefillEndpoint> parse_prefill_endpoint(std::string_view field_value) {
  const auto colon = field_value.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto port = parse_port(field_value.substr(colon + 1));
  if (!port) return std::nullopt;

  std::string_view host = field_value.substr(0, colon);
  std::optional<IpAddress> address;
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return std::nullopt;
    host = host.substr(1, host.size() - 2);
    address = parse_ipv6(host);
    if (!address) return std::nullopt;
  } else {
    address = parse_ipv4(host);
    if (!address && !is_dns_name(host)) return std::nullopt;
  }
  return PrefillEndpoint(field_value, host.size(), *port, address);
}

std::optional<PrefillEndpoint> read_configured_endpoint(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with(kScheme)) {
    text.remove_prefix(kScheme.size());
    if (text.ends_with('/')) text.remove_suffix(1);
  }
  return parse_prefill_endpoint(text);
}

PrefillHint parse_prefill_hint(std::span<const std::string_view> field_lines) {
  if (field_lines.empty()) return NoPrefillEndpoint{};
  if (field_lines.size() > 1) return InvalidPrefillEndpoint{};
  auto endpoint = parse_prefill_endpoint(field_lines.front());
  if (!endpoint) return InvalidPrefillEndpoint{};
  return *std::move(endpoint);
}

}  // namespace handoff::sidecar
