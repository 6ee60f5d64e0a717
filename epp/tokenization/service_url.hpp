#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace handoff::epp {

// The base of a tokenizer service: "http://host:port/prefix". Query and fragment are dropped.
struct ServiceUrl {
  std::string host;       // without brackets
  std::string port;       // "80" when none is given
  std::string authority;  // as it goes into Host
  std::string prefix;     // "" or "/a/b", without a slash at its end
};

// Nullopt: not an absolute http URL with a host.
std::optional<ServiceUrl> parse_service_url(std::string_view url);

}  // namespace handoff::epp
