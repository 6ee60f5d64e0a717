#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace handoff::epp {

// The endpoints that the gateway allows for a request: "ip:port", "[v6]:port", or an address alone, which
// stands for all its ports. Addresses are compared by value, not by spelling; entries that are none match
// nothing.
class EndpointSubset {
 public:
  explicit EndpointSubset(const std::vector<std::string>& entries);

  bool allows(std::string_view address, std::uint16_t port) const;

 private:
  struct Entry {
    std::string address;  // in network order
    std::optional<std::uint16_t> port;
  };
  std::vector<Entry> entries_;
};

// The bytes of an IPv4 or IPv6 literal (without brackets) in network order; IPv4-mapped ones as IPv4. Empty
// for anything else.
std::string address_bytes(std::string_view literal);

}  // namespace handoff::epp
