#include "shared/config/environment.hpp"

#include <unistd.h>

#include "shared/config/printable.hpp"

namespace handoff::config {

Environment Environment::from_process() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables));
}

std::optional<std::string_view> Environment::find(std::string_view name) const {
  for (const auto& [variable, value] : variables_) {
    if (variable != name) continue;
    const auto trimmed = trim(value);
    return trimmed.empty() ? std::nullopt : std::optional(trimmed);
  }
  return std::nullopt;
}

}  // namespace handoff::config
