// The engine's KV blocks. Pure bookkeeping, no time and no I/O.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace handoff::mock {

using BlockIds = std::vector<std::int64_t>;

// Hands out block numbers. Owned by Engine, used from its single thread. Freed blocks go to the end of the
// queue, so a number is reused late and a stale handoff usually points at a free block, as in the real
// engine.
class BlockPool {
 public:
  explicit BlockPool(std::int64_t total);

  // False, and `out` untouched, when fewer than `count` blocks are free.
  bool try_allocate(std::int64_t count, BlockIds& out);
  void release(const BlockIds& ids);

  std::int64_t total() const { return total_; }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  std::int64_t total_;
  std::deque<std::int64_t> free_;
};

}  // namespace handoff::mock
