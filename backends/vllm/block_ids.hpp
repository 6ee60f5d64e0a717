#pragma once

#include <cstdint>
#include <string_view>

namespace handoff::vllm {

/// Shapes of a list of KV block ids.
enum class BlockIds : std::uint8_t {
  empty,    ///< []
  flat,     ///< [1,2]: releases before hybrid models
  grouped,  ///< [[1,2],[]]: one list per KV-cache group; groups may be empty
  invalid,
};
BlockIds classify_block_ids(std::string_view value);

}  // namespace handoff::vllm
