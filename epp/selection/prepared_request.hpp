#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "epp/selection/cost_model.hpp"
#include "epp/selection/select_request.hpp"

namespace handoff::epp {

// A validated request with everything that can be computed without the partition's lock: hashes, overlaps,
// resolved weights. Owns all it refers to, so that it can wait.
struct PreparedRequest {
  SelectRequest request;  // its prompt is consumed
  bool book = false;

  std::vector<std::uint64_t> sequence_hashes;  // the KV index's
  std::uint64_t isl_tokens = 0;
  std::string lora_name;
  // Workers that have the request's adapter, ascending; absent: any may take it.
  std::optional<std::vector<WorkerId>> adapter_workers;

  // Blocks that the load counts: those of the tracking hashes when prefixes may be shared, else just so many.
  std::uint64_t tracked_blocks = 0;
  bool shares_blocks = false;
  // The blocks' identities in the load, where they are not simply the index's: with a tracking key, and with
  // a stride, which keeps the last one of each full group.
  std::optional<std::vector<std::uint64_t>> keyed_hashes;
  std::optional<std::vector<std::uint64_t>> strided_hashes;
  const std::vector<std::uint64_t>& booking_hashes() const {
    return keyed_hashes ? *keyed_hashes : sequence_hashes;
  }
  std::span<const std::uint64_t> tracked_hashes() const {
    return strided_hashes ? *strided_hashes : booking_hashes();
  }

  CostQuery cost;
  double temperature = 0.0;
  std::uint64_t request_hash = 0;

  std::vector<RankOverlap> overlaps;
  SteadyTime overlaps_at;
  bool is_named = false;  // the caller gave the id, and may come back with it
};

}  // namespace handoff::epp
