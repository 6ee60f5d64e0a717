#pragma once

#include <optional>

#include "epp/selection/overlap_source.hpp"
#include "epp/selection/prepared_request.hpp"
#include "epp/selection/selection_error.hpp"
#include "epp/selection/selector_config.hpp"

namespace handoff::epp {

// Checks everything a caller hands in against the limits; nullopt when the request can be prepared.
std::optional<SelectionError> validate(const SelectRequest& request, const SelectionLimits& limits);
std::optional<SelectionError> validate(const ReservationRequest& request, const SelectionLimits& limits);

// Hashes the prompt and resolves the weights for a partition with this block size. The overlaps are still
// empty. The request must have been validated; what depends on the block size is checked here.
Result<PreparedRequest> prepare(SelectRequest&& request, bool book, const PartitionKey& partition,
                                std::uint32_t block_size, bool is_eagle, const SelectorConfig& config);

}  // namespace handoff::epp
