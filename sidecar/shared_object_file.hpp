// Looks at a file before dlopen() does.
#pragma once

#include <string>

namespace handoff::sidecar {

/// Why `path` can't be a shared object that is whole, as one phrase; empty if nothing speaks against it.
/// dlopen() maps a file that was cut off and then dies of SIGBUS, and its words for a missing, empty or text
/// file are about ELF. What this can't judge, such as another machine's object, is left to dlopen().
std::string find_file_problem(const std::string& path);

}  // namespace handoff::sidecar
