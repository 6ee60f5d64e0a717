#pragma once

#include <string_view>

namespace handoff::json_text {

/// Whether `list`, brackets included, is a list of at least one plain integer (digits, no leading zero) as
/// engines write it: commas between them and no white space. Many bytes at a time and without branches on
/// what they are: lists of token ids are as long as the prompts.
bool is_compact_integer_list(std::string_view list);

}  // namespace handoff::json_text
