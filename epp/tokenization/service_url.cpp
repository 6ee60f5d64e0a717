#include "epp/tokenization/service_url.hpp"

#include <algorithm>
#include <charconv>

namespace handoff::epp {

std::optional<ServiceUrl> parse_service_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return std::nullopt;
  url.remove_prefix(kScheme.size());
  url = url.substr(0, url.find_first_of("?#"));
  const std::size_t slash = std::min(url.find('/'), url.size());
  const std::string_view authority = url.substr(0, slash);
  std::string_view prefix = url.substr(slash);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  const auto is_fine = [](char c) { return c > ' ' && c <= '~' && c != '@'; };
  if (!std::all_of(url.begin(), url.end(), is_fine)) return std::nullopt;

  ServiceUrl out;
  out.authority = authority;
  out.prefix = prefix;
  out.port = "80";
  std::string_view rest;
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    out.host = authority.substr(1, end - 1);
    rest = authority.substr(end + 1);
  } else {
    const std::size_t colon = std::min(authority.find(':'), authority.size());
    out.host = authority.substr(0, colon);
    rest = authority.substr(colon);
  }
  if (out.host.empty()) return std::nullopt;
  if (!rest.empty()) {
    unsigned port = 0;
    const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), port);
    if (rest.front() != ':' || error != std::errc() || end != rest.data() + rest.size() || port < 1 ||
        port > 65535)
      return std::nullopt;
    out.port = std::to_string(port);
  }
  return out;
}

}  // namespace handoff::epp
