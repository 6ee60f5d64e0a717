#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Splitting of arguments into flags; internal to the option table.
namespace handoff::config {

/// One `--name=value`, `--name value` or `--name`.
struct Flag {
  std::string name;                  ///< without the dashes
  std::optional<std::string> value;  ///< trimmed; nothing when none was given
};

struct CommandLine {
  std::vector<Flag> flags;
  /// Arguments that belong to no flag, by place from 1. Not their text: it may be the rest of a secret.
  std::vector<std::size_t> strays;
};

/// The first argument must already be without the program's name. An argument that starts with two dashes is
/// always a flag and never a value, so that a forgotten value can't swallow the next flag; such a value is
/// written with
/// `=`. `-h` is `--help`.
CommandLine split_arguments(const std::vector<std::string>& arguments,
                            const std::function<bool(std::string_view)>& takes_value);

}  // namespace handoff::config
