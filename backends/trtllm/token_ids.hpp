#pragma once

#include <string_view>

#include "backends/trtllm/endpoint.hpp"

namespace handoff::trtllm {

/// Whether `value` is a list of plain integers (digits, no sign, no leading zero): `[1,2]`, or `[[1,2]]`
/// where the path allows one prompt in a list of prompts. It may be empty.
bool is_id_list(std::string_view value, Api api);

}  // namespace handoff::trtllm
