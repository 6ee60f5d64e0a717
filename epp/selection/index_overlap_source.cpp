#include "epp/selection/index_overlap_source.hpp"

#include <algorithm>
#include <utility>

namespace handoff::epp {
namespace {

// Room is made ahead for no more than this: about 50 MB.
constexpr std::uint64_t kMostExpected = 1ULL << 20;

}  // namespace

IndexOverlapSource::IndexOverlapSource(const BlockIndexOptions& options, bool use_kv_events,
                                       const KvSubscriptionsFactory& subscriptions)
    : index_(options) {
  if (use_kv_events && subscriptions) subscriptions_ = subscriptions(index_);
}

IndexOverlapSource::~IndexOverlapSource() = default;

std::optional<RankSlot> IndexOverlapSource::add_rank(WorkerRank rank, const WorkerRecord& worker) {
  const std::lock_guard lock(mutex_);
  const WorkerSpec& spec = worker.spec;
  std::optional<KvSubscription> wanted;
  if (subscriptions_ != nullptr && spec.kv_events) {
    wanted = KvSubscription{
        rank,          events_endpoint(spec, rank.rank), replay_endpoint(spec, rank.rank), spec.block_size,
        spec.is_eagle, spec.data_parallel_start_rank,    spec.data_parallel_size};
  }
  const auto known = followed_.find(rank);
  const bool changed = known == followed_.end() ? wanted.has_value()
                                                : !wanted || known->second.subscription != *wanted ||
                                                      !known->second.problem.empty();
  if (changed) {
    stop_following(rank);
    // What another publisher (or our own guesses) said about this rank is no longer known to be true.
    index_.clear_rank(rank);
  }
  const auto slot = index_.add_rank(rank);
  if (changed && wanted) {
    std::string problem =
        slot ? subscriptions_->subscribe(*wanted) : "the index has no room for another rank";
    followed_.emplace(rank, Followed{*wanted, std::move(problem)});
  }
  if (const auto followed = followed_.find(rank); followed != followed_.end()) {
    const std::uint64_t most = std::min(spec.total_kv_blocks.value_or(0), kMostExpected);
    most_blocks_ -= std::exchange(followed->second.most_blocks, most);
    most_blocks_ += followed->second.most_blocks;
  }
  make_room();
  return slot;
}

// Workers often hold the same blocks, and some come one after the other: room for all of theirs is asked for
// in few steps.
void IndexOverlapSource::make_room() {
  const std::uint64_t wanted = std::min(most_blocks_, kMostExpected);
  if (wanted <= expected_ && wanted >= expected_ / 4) return;
  expected_ = wanted > expected_ ? std::min(std::max(wanted, 2 * expected_), kMostExpected) : wanted;
  index_.expect(static_cast<std::size_t>(expected_));
}

void IndexOverlapSource::remove_rank(WorkerRank rank) {
  const std::lock_guard lock(mutex_);
  stop_following(rank);
  make_room();
  index_.remove_rank(rank);
}

void IndexOverlapSource::stop_following(WorkerRank rank) {
  const auto followed = followed_.find(rank);
  if (followed == followed_.end()) return;
  if (followed->second.problem.empty()) subscriptions_->unsubscribe(rank);
  most_blocks_ -= followed->second.most_blocks;
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

bool IndexOverlapSource::engine_hashes(std::span<const std::uint64_t> sequence_hashes,
                                       std::vector<std::uint64_t>& out) const {
  return index_.engine_hashes(sequence_hashes, out);
}

KvStatus IndexOverlapSource::status() const {
  KvStatus status;
  status.index = index_.stats();
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, followed] : followed_) {
    KvRankStatus& row = status.ranks.emplace_back();
    row.rank = rank;
    row.problem = followed.problem;
    if (row.problem.empty()) subscriptions_->report(rank, row);
  }
  return status;
}

std::vector<std::string> IndexOverlapSource::problems() const {
  std::vector<std::string> lines;
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, followed] : followed_) {
    if (followed.problem.empty()) continue;
    lines.push_back("worker " + std::to_string(rank.worker) + " rank " + std::to_string(rank.rank) + ": " +
                    followed.problem);
  }
  return lines;
}

OverlapSourceFactory index_overlap_sources(const SelectorConfig& config, BlockIndexOptions options,
                                           KvSubscriptionsFactory subscriptions) {
  options.predicted_ttl = config.router_ttl;
  options.keeps_engine_hashes = config.kv_fetch_hints;
  return [options, use_kv_events = config.use_kv_events, subscriptions = std::move(subscriptions)](
             const PartitionKey&, std::uint32_t, bool) {
    return std::make_unique<IndexOverlapSource>(options, use_kv_events, subscriptions);
  };
}

}  // namespace handoff::epp
