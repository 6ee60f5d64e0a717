#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Text helpers of the option table; internal to this folder.
namespace handoff::config {

/// Without the spaces, tabs and line ends around it.
std::string_view trim(std::string_view text);

/// For one line of output: control characters and bytes that are no UTF-8 as \xNN.
std::string printable(std::string_view text);

/// The printable text in quotes, cut after 80 bytes: for messages that repeat what an operator wrote.
std::string in_quotes(std::string_view text);

/// The candidate that a mistyped name most likely meant; nothing when none is close. `most`: how many letters
/// may be wrong, where fewer are to be than what a name of that length allows.
std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates,
                                   std::size_t most = static_cast<std::size_t>(-1));

/// The items with `separator` between them.
std::string join(const std::vector<std::string>& items, std::string_view separator);

}  // namespace handoff::config
