#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace handoff::epp {

// BLAKE3 in its keyed mode, 32 bytes of output (https://github.com/BLAKE3-team/BLAKE3-specs). Debian 12 has
// no library of it. Portable and plain: a few microseconds per request, where a tracking key is configured.
std::array<std::uint8_t, 32> blake3_keyed(const std::array<std::uint8_t, 32>& key,
                                          std::span<const std::uint8_t> message);

}  // namespace handoff::epp
