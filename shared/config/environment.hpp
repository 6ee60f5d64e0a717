#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace handoff::config {

/// Environment variables as a value, so that everything but `main` is free of the process's own. A name that
/// comes twice keeps its first value, as getenv has it.
class Environment {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  Environment() = default;
  explicit Environment(Variables variables) : variables_(std::move(variables)) {}

  /// A copy of the process's environment. Call it before threads start.
  static Environment from_process();

  /// The value without blanks around it; nothing when the variable is absent or blank, which counts as unset.
  /// Views this object.
  std::optional<std::string_view> find(std::string_view name) const;

  const Variables& variables() const { return variables_; }

 private:
  Variables variables_;
};

}  // namespace handoff::config
