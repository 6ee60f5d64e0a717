// Checks what a backend declares in its table. Declarations come from a shared object that a stranger may
// have built, so nothing in them is used before it was looked at here.
#pragma once

#include <string>
#include <string_view>

#include "shared/backend_abi/decode_backend.h"

namespace handoff::sidecar {

/// What is wrong with the declarations of `table`, as one phrase with the entry and its value; empty if they
/// are sound. All entries of the table must be readable (see copy_table in backend_host.cpp).
std::string find_declaration_problem(const handoff_backend_api& table);

/// Text from a plugin, fit for a log line: printable ASCII, and cut if it is long.
std::string printable(std::string_view text);

}  // namespace handoff::sidecar
