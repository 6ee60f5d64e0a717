#include "epp/selection/index_overlap_source.hpp"

namespace handoff::epp {

IndexOverlapSource::IndexOverlapSource(const BlockIndexOptions& options, bool use_kv_events,
                                       KvEventSubscriptions* subscriptions)
    : use_kv_events_(use_kv_events), subscriptions_(subscriptions), index_(options) {}

IndexOverlapSource::~IndexOverlapSource() {
  const std::lock_guard lock(mutex_);
  while (!followed_.empty()) stop_following(followed_.begin()->first);
}

std::optional<RankSlot> IndexOverlapSource::add_rank(WorkerRank rank, const WorkerRecord& worker) {
  const std::lock_guard lock(mutex_);
  const WorkerSpec& spec = worker.spec;
  KvEventAddress address;
  if (use_kv_events_ && spec.kv_events && subscriptions_ != nullptr) {
    address = {events_endpoint(spec, rank.rank), replay_endpoint(spec, rank.rank), spec.block_size};
  }
  const auto known = followed_.find(rank);
  const bool moved = known != followed_.end() ? known->second != address : !address.events.empty();
  if (moved) {
    stop_following(rank);
    // What another publisher (or our own guesses) said about this rank is no longer known to be true.
    index_.clear_rank(rank);
  }
  const auto slot = index_.add_rank(rank);
  if (slot && moved && !address.events.empty()) {
    subscriptions_->subscribe(index_, rank, address);
    followed_.emplace(rank, address);
  }
  return slot;
}

void IndexOverlapSource::remove_rank(WorkerRank rank) {
  const std::lock_guard lock(mutex_);
  stop_following(rank);
  index_.remove_rank(rank);
}

void IndexOverlapSource::stop_following(WorkerRank rank) {
  const auto followed = followed_.find(rank);
  if (followed == followed_.end()) return;
  subscriptions_->unsubscribe(index_, rank);
  followed_.erase(followed);
}

void IndexOverlapSource::match(std::span<const std::uint64_t> sequence_hashes, SteadyTime now,
                               std::vector<RankOverlap>& rows) {
  // Scratch that grows to the number of ranks and then allocates nothing.
  static thread_local OverlapScores scores;
  index_.match_prefix(sequence_hashes, now, scores);
  rows.assign(scores.rows().begin(), scores.rows().end());
}

void IndexOverlapSource::predict(WorkerRank rank, std::span<const std::uint64_t> sequence_hashes,
                                 SteadyTime now) {
  index_.predict(rank, sequence_hashes, now);
}

void IndexOverlapSource::maintain(SteadyTime now) {
  index_.maintain(now);
}

}  // namespace handoff::epp
