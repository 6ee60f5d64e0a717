#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/selection/overlap_source.hpp"
#include "epp/selection/selector_config.hpp"

namespace handoff::epp {

// The identities of a request's blocks in the accounting of running requests, under a secret key: Dynamo's
// keyed-xxh3-v1 (`router_tracking_hash`). Two seeds are drawn from key, partition, salt and adapter by
// BLAKE3; blocks and chain are then XXH3 as everywhere. Never used for the KV index.
std::vector<std::uint64_t> keyed_tracking_hashes(const TrackingKey& key, const PartitionKey& partition,
                                                 std::span<const std::uint32_t> tokens,
                                                 std::uint32_t block_size, const HashOptions& options);

}  // namespace handoff::epp
