#include "shared/config/kubernetes_names.hpp"

#include <algorithm>
#include <cstddef>

namespace handoff::config {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// What follows "_PORT_": digits, a protocol, perhaps one part of the address.
bool is_port_of_protocol(std::string_view rest) {
  const auto digits =
      static_cast<std::size_t>(std::find_if_not(rest.begin(), rest.end(), is_digit) - rest.begin());
  if (digits == 0) return false;
  rest.remove_prefix(digits);
  for (const std::string_view protocol : {"_TCP", "_UDP", "_SCTP"}) {
    if (!rest.starts_with(protocol)) continue;
    const auto part = rest.substr(protocol.size());
    return part.empty() || part == "_PROTO" || part == "_PORT" || part == "_ADDR";
  }
  return false;
}

}  // namespace

bool is_service_link_value(std::string_view value) {
  return value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://");
}

bool is_service_link_name(std::string_view name) {
  if (name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT")) return true;
  if (name.find("_SERVICE_PORT_") != std::string_view::npos) return true;
  constexpr std::string_view kPort = "_PORT_";
  const auto port = name.rfind(kPort, name.find_last_of("0123456789"));
  return port != std::string_view::npos && is_port_of_protocol(name.substr(port + kPort.size()));
}

}  // namespace handoff::config
