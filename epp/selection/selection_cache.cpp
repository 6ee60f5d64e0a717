#include "epp/selection/selection_cache.hpp"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace handoff::epp {
namespace {

std::size_t bytes_of(const PreparedRequest& prepared) {
  const auto hashes = [](const std::optional<std::vector<std::uint64_t>>& list) {
    return list ? list->size() : 0;
  };
  const SelectRequest& request = prepared.request;
  std::size_t bytes = sizeof(SelectionCache::Entry) + request.selection_id.size() +
                      request.model_name.size() + request.routing_group.size() + prepared.lora_name.size();
  bytes += sizeof(std::uint64_t) * (prepared.sequence_hashes.size() + hashes(prepared.keyed_hashes) +
                                    hashes(prepared.strided_hashes));
  if (request.session) bytes += request.session->session_id.size();
  return bytes;
}

}  // namespace

void SelectionCache::put(Entry entry, SteadyTime now) {
  drop_expired(now);
  erase(entry.request.request.selection_id);
  // Only what a booking needs is worth its memory.
  entry.request.overlaps = {};
  entry.request.adapter_workers.reset();
  entry.request.request.allowed_workers.reset();
  entry.request.request.constraints = {};
  entry.request.request.shared_cache_hits = {};
  const std::size_t bytes = bytes_of(entry.request);
  if (bytes > config_.max_bytes || config_.max_entries == 0) return;
  while (entries_.size() >= config_.max_entries || bytes_ + bytes > config_.max_bytes) erase(order_.begin());
  order_.push_back({std::move(entry), now + config_.ttl, bytes});
  entries_.emplace(order_.back().entry.request.request.selection_id, std::prev(order_.end()));
  bytes_ += bytes;
}

SelectionCache::Entry* SelectionCache::find(std::string_view id, SteadyTime now) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second->expires <= now) return nullptr;
  return &found->second->entry;
}

SelectionCache::Entry SelectionCache::take(std::string_view id) {
  const auto found = entries_.find(id);
  const auto kept = found->second;
  entries_.erase(found);  // before its key is moved away
  bytes_ -= kept->bytes;
  Entry entry = std::move(kept->entry);
  order_.erase(kept);
  return entry;
}

void SelectionCache::erase(std::string_view id) {
  if (const auto found = entries_.find(id); found != entries_.end()) erase(found->second);
}

void SelectionCache::erase(Order::iterator kept) {
  bytes_ -= kept->bytes;
  entries_.erase(kept->entry.request.request.selection_id);
  order_.erase(kept);
}

void SelectionCache::drop_expired(SteadyTime now) {
  while (!order_.empty() && order_.front().expires <= now) erase(order_.begin());
}

}  // namespace handoff::epp
