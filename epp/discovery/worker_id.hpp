#pragma once

#include <cstdint>
#include <string_view>

namespace handoff::epp {

// The 53-bit id of a worker, from its name alone, so that all replicas and restarts agree: SipHash-1-3 with a
// zero key over the name's bytes and one 0xFF, as Dynamo derives it from a pod's name.
std::uint64_t worker_id_of(std::string_view name);

}  // namespace handoff::epp
