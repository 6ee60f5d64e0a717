#include "block_pool.hpp"

namespace handoff::mock {
namespace {

std::size_t at(std::int64_t id) {
  return static_cast<std::size_t>(id);
}

}  // namespace

BlockPool::BlockPool(std::int64_t total)
    : next_(at(total) + 1, total), previous_(at(total) + 1, total), owners_(at(total), 0) {
  for (std::int64_t id = 0; id < total; ++id) link_last(id);
}

bool BlockPool::try_allocate(std::int64_t count, BlockIds& out) {
  if (count > free()) return false;
  out.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = next_[at(total())];
    if (on_reuse) on_reuse(id);
    unlink(id);
    owners_[at(id)] = 1;
    out.push_back(id);
  }
  return true;
}

void BlockPool::share(std::int64_t id) {
  if (owners_[at(id)]++ == 0) unlink(id);
}

void BlockPool::release(const BlockIds& ids) {
  // The end of a sequence first: its beginning is what others may share, so that is to be evicted last.
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    if (--owners_[at(*id)] == 0) link_last(*id);
  }
}

void BlockPool::link_last(std::int64_t id) {
  const std::int64_t head = total();
  const std::int64_t last = previous_[at(head)];
  next_[at(last)] = id;
  previous_[at(id)] = last;
  next_[at(id)] = head;
  previous_[at(head)] = id;
  ++free_;
}

void BlockPool::unlink(std::int64_t id) {
  next_[at(previous_[at(id)])] = next_[at(id)];
  previous_[at(next_[at(id)])] = previous_[at(id)];
  --free_;
}

}  // namespace handoff::mock
