#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace handoff::epp {

// One data-parallel rank of one worker: the unit that owns KV blocks and publishes events.
struct WorkerRank {
  std::uint64_t worker = 0;
  std::uint32_t rank = 0;

  friend auto operator<=>(const WorkerRank&, const WorkerRank&) = default;
};

// Where a block lives, fastest first. The order is the order in which a prefix match moves on.
enum class Tier : std::uint8_t { device, host, disk, external };

inline constexpr std::size_t kTierCount = 4;

}  // namespace handoff::epp
