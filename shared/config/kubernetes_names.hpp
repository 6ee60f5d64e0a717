#pragma once

#include <string_view>

/// Kubernetes gives every pod variables for each Service of its namespace. A Service called dyn-sidecar makes
/// DYN_SIDECAR_PORT=tcp://10.0.0.1:8000 and more, which look like ours. Internal to this folder.
namespace handoff::config {

inline constexpr std::string_view kServiceLinksAdvice =
    "Kubernetes injects it for a Service of that name; set enableServiceLinks: false in the pod spec";

/// Whether a value has the shape of an injected <NAME>_PORT: tcp://…, udp://… or sctp://….
bool is_service_link_value(std::string_view value);

/// Whether a name has the shape of an injected one: …_SERVICE_HOST, …_SERVICE_PORT[_name],
/// …_PORT_8000_TCP[_ADDR|…].
bool is_service_link_name(std::string_view name);

}  // namespace handoff::config
