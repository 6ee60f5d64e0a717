#pragma once

#include <string>

namespace handoff::epp {

// From now on what gRPC logs becomes lines of ours: its errors warnings, few of them however many there are
// (anybody who connects can cause one), and the rest, of which there is some with GRPC_VERBOSITY, debugging.
// Call it before gRPC starts.
void log_grpc_as_ours();

// The last error gRPC had on this thread; empty: none. It is known also when nothing is logged yet.
std::string last_grpc_error();

}  // namespace handoff::epp
