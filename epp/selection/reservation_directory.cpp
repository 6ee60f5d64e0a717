#include "epp/selection/reservation_directory.hpp"

#include <algorithm>

namespace handoff::epp {

ReservationDirectory::ReservationDirectory(std::size_t max_retired, std::chrono::nanoseconds retired_ttl)
    : max_retired_per_shard_(std::max<std::size_t>(1, max_retired / kShards)), retired_ttl_(retired_ttl) {}

ReservationDirectory::Shard& ReservationDirectory::shard(std::string_view id) {
  return shards_[(TextHash()(id) >> 7) % kShards];
}

ReservationDirectory::Claim ReservationDirectory::claim(const std::string& id,
                                                        const std::shared_ptr<Partition>& partition,
                                                        SteadyTime now, EarlyLifecycle& early) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  trim(part, now);
  Entry& entry = part.entries[id];
  if (entry.held) return entry.holder.lock() == partition ? Claim::kAlreadyHere : Claim::kElsewhere;
  if (entry.finished) return Claim::kFinished;
  early = entry.early;
  entry = Entry{};
  entry.holder = partition;
  entry.held = true;
  return Claim::kClaimed;
}

void ReservationDirectory::release(std::string_view id, const EarlyLifecycle& early, SteadyTime now) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  const auto found = part.entries.find(id);
  if (found == part.entries.end()) return;
  if (!early.any()) {
    part.entries.erase(found);
    return;
  }
  found->second = Entry{};
  found->second.early = early;
  remember(part, id, found->second, now);
}

void ReservationDirectory::retire(std::string_view id, SteadyTime now) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  const auto found = part.entries.find(id);
  if (found == part.entries.end()) return;
  found->second = Entry{};
  found->second.finished = true;
  remember(part, id, found->second, now);
}

std::shared_ptr<Partition> ReservationDirectory::find(std::string_view id) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  const auto found = part.entries.find(id);
  return found == part.entries.end() || !found->second.held ? nullptr : found->second.holder.lock();
}

ReservationDirectory::Entry& ReservationDirectory::entry_of(Shard& part, std::string_view id,
                                                            std::shared_ptr<Partition>& holder) {
  auto found = part.entries.find(id);
  if (found == part.entries.end()) found = part.entries.try_emplace(std::string(id)).first;
  Entry& entry = found->second;
  if (!entry.held) return entry;
  holder = entry.holder.lock();
  if (holder != nullptr) return entry;
  // Its partition is gone, and all its bookings with it.
  entry = Entry{};
  entry.finished = true;
  return entry;
}

std::shared_ptr<Partition> ReservationDirectory::find_or_remember(std::string_view id,
                                                                  const EarlyLifecycle& call, SteadyTime now,
                                                                  bool& finished) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  std::shared_ptr<Partition> holder;
  Entry& entry = entry_of(part, id, holder);
  if (holder != nullptr) return holder;
  finished = entry.finished;
  if (!entry.finished) entry.early.merge(call);
  remember(part, id, entry, now);
  return nullptr;
}

std::shared_ptr<Partition> ReservationDirectory::find_or_finish(std::string_view id, SteadyTime now,
                                                                bool& finished) {
  Shard& part = shard(id);
  const std::lock_guard lock(part.mutex);
  std::shared_ptr<Partition> holder;
  Entry& entry = entry_of(part, id, holder);
  if (holder != nullptr) return holder;
  finished = entry.finished;
  // Remembered for its full time from the free on, not from an earlier call.
  if (!finished) entry.generation = 0;
  entry.finished = true;
  remember(part, id, entry, now);
  return nullptr;
}

void ReservationDirectory::remember(Shard& part, std::string_view id, Entry& entry, SteadyTime now) {
  // One line per retirement, not per call: repeated calls for one id may not push out the others.
  if (entry.generation == 0) {
    entry.generation = part.next_generation++;
    part.order.push_back({std::string(id), now, entry.generation});
  }
  trim(part, now);
}

void ReservationDirectory::trim(Shard& part, SteadyTime now) const {
  while (!part.order.empty()) {
    const Retired& oldest = part.order.front();
    if (part.order.size() <= max_retired_per_shard_ && now - oldest.at < retired_ttl_) return;
    const auto found = part.entries.find(oldest.id);
    if (found != part.entries.end() && !found->second.held && found->second.generation == oldest.generation) {
      part.entries.erase(found);
    }
    part.order.pop_front();
  }
}

std::size_t ReservationDirectory::retired() const {
  std::size_t total = 0;
  for (const Shard& part : shards_) {
    const std::lock_guard lock(part.mutex);
    total += part.order.size();
  }
  return total;
}

}  // namespace handoff::epp
