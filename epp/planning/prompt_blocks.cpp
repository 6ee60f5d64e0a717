#include "epp/planning/prompt_blocks.hpp"

#include <algorithm>

namespace handoff::epp {
namespace {

// A span is a claim of a tokenizer: what lies beyond any prompt is not believed.
constexpr std::size_t kMostBlocks = std::size_t{4} << 20;

}  // namespace

std::vector<BlockMedia> media_by_block(const std::vector<MediaSpan>& spans, std::uint32_t block_size) {
  std::vector<BlockMedia> blocks;
  if (block_size == 0) return blocks;
  for (const MediaSpan& span : spans) {
    if (span.length == 0) continue;
    const std::size_t first = span.offset / block_size;
    const std::size_t last = (span.offset + span.length - 1) / block_size;
    if (last < first || last >= kMostBlocks) continue;
    if (blocks.size() <= last) blocks.resize(last + 1);
    for (std::size_t i = first; i <= last; ++i) blocks[i].push_back(span.id);
  }
  return blocks;
}

}  // namespace handoff::epp
