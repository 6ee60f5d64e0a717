// The engine's KV blocks. Pure bookkeeping, no time and no I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace handoff::mock {

using BlockIds = std::vector<std::int64_t>;

// Hands out block numbers and counts their owners: requests and leases that share a cached prefix own the
// same blocks. Owned by Engine, used from its single thread. A block without owners goes to the end of the
// free list and keeps what is in it until its number is handed out again, so the list is the cache's LRU
// order, and a stale handoff usually points at a free block, as in the real engine.
class BlockPool {
 public:
  explicit BlockPool(std::int64_t total);

  // False, and `out` untouched, when fewer than `count` blocks are free.
  bool try_allocate(std::int64_t count, BlockIds& out);
  // One more owner; a free block stops being free.
  void share(std::int64_t id);
  void release(const BlockIds& ids);

  // Called for a free block that is about to be handed out for other contents.
  std::function<void(std::int64_t)> on_reuse;

  bool is_free(std::int64_t id) const { return owners_[static_cast<std::size_t>(id)] == 0; }
  std::int64_t total() const { return static_cast<std::int64_t>(owners_.size()); }
  std::int64_t free() const { return free_; }

 private:
  void link_last(std::int64_t id);
  void unlink(std::int64_t id);

  // The free list, threaded through the blocks; the last entry is its head.
  std::vector<std::int64_t> next_;
  std::vector<std::int64_t> previous_;
  std::vector<std::int64_t> owners_;
  std::int64_t free_ = 0;
};

}  // namespace handoff::mock
