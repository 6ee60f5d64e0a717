#include "epp/kv_index/read_epochs.hpp"

#include <algorithm>
#include <limits>
#include <thread>

namespace handoff::epp {

namespace {
constexpr std::size_t kReclaimStep = 64;
constexpr std::size_t kReclaimBytes = std::size_t{4} << 20;

std::size_t preferred_reader_slot() {
  static std::atomic<std::size_t> next{0};
  thread_local const std::size_t mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}
}  // namespace

ReadEpochs::~ReadEpochs() {
  for (const Retired& entry : retired_) entry.destroy(entry.object);
}

ReadEpochs::Pin ReadEpochs::pin() const {
  std::uint64_t epoch = epoch_.load();
  std::size_t index = preferred_reader_slot() % kReaders;
  for (std::size_t tries = 1;; ++tries) {
    std::uint64_t free = 0;
    if (readers_[index].epoch.compare_exchange_strong(free, epoch)) break;
    index = (index + 1) % kReaders;
    if (tries % kReaders == 0) std::this_thread::yield();
  }
  // A writer that looked at our slot before we took it has already moved the epoch on; reading the epoch
  // again (all these accesses are sequentially consistent) makes us see that, and with it everything the
  // writer unlinked.
  for (std::uint64_t now = epoch_.load(); now != epoch; now = epoch_.load()) {
    epoch = now;
    readers_[index].epoch.store(epoch);
  }
  return Pin(readers_[index].epoch);
}

std::uint64_t ReadEpochs::advance() {
  return epoch_.fetch_add(1);
}

bool ReadEpochs::passed(std::uint64_t epoch) const {
  return std::none_of(readers_.begin(), readers_.end(), [epoch](const ReaderSlot& reader) {
    const std::uint64_t pinned = reader.epoch.load();
    return pinned != 0 && pinned <= epoch;
  });
}

void ReadEpochs::retire(void* object, void (*destroy)(void*), std::size_t bytes) {
  const std::uint64_t epoch = advance();
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    retired_.push_back({epoch, object, destroy, bytes});
    due = retired_.size() >= reclaim_at_;
  }
  if (retired_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes > kReclaimBytes || due) reclaim();
}

void ReadEpochs::reclaim() {
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  std::vector<Retired> free;
  {
    const std::lock_guard lock(mutex_);
    for (const ReaderSlot& reader : readers_) {
      const std::uint64_t pinned = reader.epoch.load();
      if (pinned != 0) oldest = std::min(oldest, pinned);
    }
    const auto visible = [oldest](const Retired& entry) { return entry.epoch >= oldest; };
    const auto split = std::partition(retired_.begin(), retired_.end(), visible);
    free.assign(split, retired_.end());
    retired_.erase(split, retired_.end());
    reclaim_at_ = retired_.size() + kReclaimStep;
  }
  std::size_t bytes = 0;
  for (const Retired& entry : free) {
    entry.destroy(entry.object);
    bytes += entry.bytes;
  }
  retired_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace handoff::epp
