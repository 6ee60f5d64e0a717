#include "epp/planning/endpoint_subset.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "epp/ext_proc/header_block.hpp"

namespace handoff::epp {
namespace {

std::optional<std::uint16_t> to_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) return std::nullopt;
  return port;
}

}  // namespace

std::string address_bytes(std::string_view literal) {
  std::array<char, 64> text{};
  if (literal.size() >= text.size()) return {};
  std::copy(literal.begin(), literal.end(), text.begin());
  in_addr v4{};
  if (inet_pton(AF_INET, text.data(), &v4) == 1) {
    return {reinterpret_cast<const char*>(&v4), sizeof v4};
  }
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.data(), &v6) != 1) return {};
  const std::string bytes(reinterpret_cast<const char*>(&v6), sizeof v6);
  return IN6_IS_ADDR_V4MAPPED(&v6) ? bytes.substr(12) : bytes;
}

EndpointSubset::EndpointSubset(const std::vector<std::string>& entries) {
  for (const std::string& raw : entries) {
    std::string_view text = trimmed(raw);
    Entry entry;
    if (text.starts_with('[')) {
      const auto close = text.find(']');
      if (close == std::string_view::npos) continue;
      entry.address = address_bytes(text.substr(1, close - 1));
      text.remove_prefix(close + 1);
      if (!text.empty()) {
        if (!text.starts_with(':') || !(entry.port = to_port(text.substr(1)))) continue;
      }
    } else if (std::count(text.begin(), text.end(), ':') == 1) {
      const auto colon = text.find(':');
      entry.address = address_bytes(text.substr(0, colon));
      if (!(entry.port = to_port(text.substr(colon + 1)))) continue;
    } else {
      entry.address = address_bytes(text);
    }
    if (!entry.address.empty()) entries_.push_back(std::move(entry));
  }
}

bool EndpointSubset::allows(std::string_view address, std::uint16_t port) const {
  const std::string bytes = address_bytes(address);
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.address == bytes && entry.port.value_or(port) == port;
  });
}

}  // namespace handoff::epp
