#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "epp/selection/selector_config.hpp"

namespace handoff::epp {

// Every problem of a policy file, in one line.
struct PolicyFileError {
  std::string text;
};

inline constexpr std::size_t kMaxPolicyFileBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxPolicyClasses = 256;
inline constexpr std::size_t kMaxIslBuckets = 64;

// The policy classes of a YAML text, as Dynamo's DYN_ROUTER_POLICY_CONFIG has them. What the values mean
// together is checked by SelectorConfig::validate().
std::variant<PolicyProfile, PolicyFileError> parse_policy_file(std::string_view text);

// The same, of a file.
std::variant<PolicyProfile, PolicyFileError> read_policy_file(const std::string& path);

}  // namespace handoff::epp
