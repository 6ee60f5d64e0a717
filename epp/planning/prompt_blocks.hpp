#pragma once

#include <cstdint>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/tokenization/tokenizer.hpp"

namespace handoff::epp {

// The media of each block that has any, as block hashing takes them. Empty without media.
std::vector<BlockMedia> media_by_block(const std::vector<MediaSpan>& spans, std::uint32_t block_size);

}  // namespace handoff::epp
