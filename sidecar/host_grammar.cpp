#include "sidecar/host_grammar.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "sidecar/ascii.hpp"

namespace handoff::sidecar {
namespace {

constexpr std::size_t kMaxNameLength = 253;
constexpr std::size_t kMaxLabelLength = 63;
constexpr std::size_t kV4Offset = 12;
constexpr std::array<std::uint8_t, kV4Offset> kV4MappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/// inet_pton wants a terminated string. No literal is longer than this, and one that holds a NUL would be cut
/// short.
class TerminatedLiteral {
 public:
  explicit TerminatedLiteral(std::string_view text) {
    if (text.size() >= sizeof(buffer_) || text.find('\0') != std::string_view::npos) return;
    std::copy(text.begin(), text.end(), buffer_);
  }

  /// Empty when the text can't be a literal, which inet_pton refuses.
  const char* c_str() const { return buffer_; }

 private:
  char buffer_[INET6_ADDRSTRLEN] = {};
};

bool is_label(std::string_view label) {
  if (label.empty() || label.size() > kMaxLabelLength) return false;
  if (label.front() == '-' || label.back() == '-') return false;
  return std::all_of(label.begin(), label.end(),
                     [](char c) { return is_ascii_alpha(c) || is_ascii_digit(c) || c == '-' || c == '_'; });
}

bool reads_as_number(std::string_view label) {
  if (label.starts_with("0x") || label.starts_with("0X")) {
    label.remove_prefix(2);
    return std::all_of(label.begin(), label.end(), is_ascii_hex_digit);
  }
  return std::all_of(label.begin(), label.end(), is_ascii_digit);
}

}  // namespace

bool IpAddress::is_v4() const {
  return std::equal(kV4MappedPrefix.begin(), kV4MappedPrefix.end(), bytes_.begin());
}

std::optional<IpAddress> parse_ipv4(std::string_view text) {
  IpAddress::Bytes bytes{};
  std::copy(kV4MappedPrefix.begin(), kV4MappedPrefix.end(), bytes.begin());
  if (inet_pton(AF_INET, TerminatedLiteral(text).c_str(), &bytes[kV4Offset]) != 1) return std::nullopt;
  return IpAddress(bytes);
}

std::optional<IpAddress> parse_ipv6(std::string_view text) {
  IpAddress::Bytes bytes{};
  if (inet_pton(AF_INET6, TerminatedLiteral(text).c_str(), bytes.data()) != 1) return std::nullopt;
  return IpAddress(bytes);
}

bool is_dns_name(std::string_view text) {
  if (text.empty() || text.size() > kMaxNameLength) return false;
  for (;;) {
    const auto dot = text.find('.');
    const std::string_view label = text.substr(0, dot);
    if (!is_label(label)) return false;
    if (dot == std::string_view::npos) return !reads_as_number(label);
    text.remove_prefix(dot + 1);
  }
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  if (text.empty() || text.front() == '0') return std::nullopt;
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return port;
}

}  // namespace handoff::sidecar
