// The grammar of the routing header and of the allowlist. The first line of the input is a header value, the
// rest an allowlist. What is accepted must be plain, must read the same again, and must be let through by a
// list of itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

#include "sidecar/prefill_allowlist.hpp"
#include "sidecar/prefill_endpoint.hpp"

namespace {

using namespace handoff::sidecar;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_endpoint(const PrefillEndpoint& endpoint, std::string_view value) {
  for (const char c : value)
    require(c > ' ' && c < 0x7f && std::string_view(",@/?#%\\").find(c) == std::string_view::npos);
  require(endpoint.port() != 0 && !endpoint.host().empty());
  require(endpoint.host().find_first_of("[]") == std::string_view::npos);
  require(endpoint.authority().size() == value.size());
  require(parse_prefill_endpoint(endpoint.authority()) == endpoint);
}

bool listed(const std::string& setting, const PrefillEndpoint& endpoint) {
  const auto parsed = parse_prefill_allowlist(setting);
  const auto* allowlist = std::get_if<PrefillAllowlist>(&parsed);
  require(allowlist != nullptr && !allowlist->allows_all());
  return allowlist->allows(endpoint);
}

void check_own_list(const PrefillEndpoint& endpoint) {
  const std::string other_port = std::to_string(endpoint.port() == 1 ? 2 : endpoint.port() - 1);
  const std::string host(endpoint.host());
  require(listed(endpoint.authority(), endpoint));
  require(listed(host, endpoint));
  require(!listed((endpoint.is_ipv6() ? '[' + host + ']' : host) + ':' + other_port, endpoint));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto line_end = input.find('\n');
  const std::string_view value = input.substr(0, line_end);
  const std::string_view setting = line_end == std::string_view::npos ? "" : input.substr(line_end + 1);

  const auto endpoint = parse_prefill_endpoint(value);
  if (endpoint) {
    check_endpoint(*endpoint, value);
    check_own_list(*endpoint);
  }
  const auto parsed = parse_prefill_allowlist(setting);
  if (const auto* error = std::get_if<AllowlistError>(&parsed)) {
    require(!error->message.empty());
  } else if (endpoint) {
    const auto& allowlist = std::get<PrefillAllowlist>(parsed);
    require(allowlist.allows(*endpoint) || !allowlist.allows_all());
  }
  return 0;
}
