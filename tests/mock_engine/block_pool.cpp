#include "block_pool.hpp"

#include <algorithm>

namespace handoff::mock {

BlockPool::BlockPool(std::int64_t total) : total_(total) {
  for (std::int64_t id = 0; id < total; ++id) free_.push_back(id);
}

bool BlockPool::try_allocate(std::int64_t count, BlockIds& out) {
  if (count > free()) return false;
  const auto end = free_.begin() + count;
  out.assign(free_.begin(), end);
  free_.erase(free_.begin(), end);
  return true;
}

void BlockPool::release(const BlockIds& ids) {
  free_.insert(free_.end(), ids.begin(), ids.end());
}

}  // namespace handoff::mock
