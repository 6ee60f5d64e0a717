#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "epp/discovery/endpoint_source.hpp"

namespace handoff::epp {

// The endpoints file, as text: YAML in, endpoints out. No files and no network in here.

// An endpoint as the file has it. `endpoint.address` may still be a DNS name, and it is not ready.
struct FileEndpoint {
  Endpoint endpoint;
  bool is_name = false;  // the address is a DNS name
  std::string health_path = "/health";

  bool operator==(const FileEndpoint&) const = default;
};

// What is wrong with a file: every problem with its place and what is accepted, in one line.
struct EndpointsFileError {
  std::string text;
};

inline constexpr std::size_t kMaxEndpointsFileBytes = std::size_t{8} << 20;
inline constexpr std::size_t kMaxFileEndpoints = 10'000;

// Names are unique, ports and counts in range, unknown keys errors. An empty list is fine, a file without
// `endpoints` is not.
std::variant<std::vector<FileEndpoint>, EndpointsFileError> parse_endpoints_file(std::string_view text);

}  // namespace handoff::epp
