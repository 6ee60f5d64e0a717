#include "epp/selection/partition.hpp"

#include <algorithm>
#include <utility>

#include "epp/selection/mix_hash.hpp"

namespace handoff::epp {
namespace {

// Bookings looked at per lock hold when orphans are swept: a few microseconds.
constexpr std::size_t kSweepChunk = 512;
constexpr std::string_view kStoppingText = "the selection service is shutting down";

// Ties break by what is stable about a rank: its declared routing id where it has one.
std::uint64_t tie_key_of(const WorkerSpec& spec, DpRank rank) {
  const std::uint64_t worker =
      spec.stable_routing_id.empty() ? mix64(spec.worker_id) : hash_text(spec.stable_routing_id);
  return mix64(worker + rank);
}

template <typename Row>
void sort_by_rank(std::vector<Row>& rows) {
  std::sort(rows.begin(), rows.end(),
            [](const Row& left, const Row& right) { return left.rank < right.rank; });
}

}  // namespace

SelectionStats& SelectionStats::operator+=(const SelectionStats& other) {
  selections += other.selections;
  bookings += other.bookings;
  repeated_bookings += other.repeated_bookings;
  queued += other.queued;
  dispatched_from_queue += other.dispatched_from_queue;
  rejected_by_limit += other.rejected_by_limit;
  deadline_exceeded += other.deadline_exceeded;
  cancelled += other.cancelled;
  failed += other.failed;
  freed += other.freed;
  orphans_expired += other.orphans_expired;
  lost_with_worker += other.lost_with_worker;
  affinity_table_full += other.affinity_table_full;
  queue_wait += other.queue_wait;
  live_reservations += other.live_reservations;
  waiting += other.waiting;
  sessions += other.sessions;
  tracked_blocks += other.tracked_blocks;
  remembered_selections += other.remembered_selections;
  return *this;
}

Partition::Partition(PartitionKey key, std::uint32_t block_size, bool is_eagle, Deps deps)
    : key_(std::move(key)),
      block_size_(block_size),
      is_eagle_(is_eagle),
      config_(deps.config),
      profile_(deps.config.profile_for(key_.model_name)),
      directory_(deps.directory),
      clock_(deps.clock),
      prefill_duration_(deps.prefill_duration),
      overlaps_(std::move(deps.overlaps)),
      created_(clock_()),
      ledger_(deps.config.limits.max_tracked_blocks, deps.config.active_sequence_stride),
      affinity_(deps.config.affinity),
      filter_(config_, ranks_, ledger_, affinity_),
      choice_(config_, ranks_, ledger_),
      queue_(profile_.policy_classes, deps.config.limits.max_waiting),
      cache_(deps.config.selection_cache) {}

Partition::~Partition() = default;

void Partition::attach(const std::shared_ptr<const WorkerRecord>& worker) {
  const WorkerSpec& spec = worker->spec;
  const bool complete = worker->lifecycle != WorkerLifecycle::kIncomplete;
  std::vector<RankState> states;
  for (std::uint32_t i = 0; i < spec.data_parallel_size; ++i) {
    RankState state;
    state.rank = {spec.worker_id, spec.data_parallel_start_rank + i};
    state.worker = worker;
    state.tie_key = tie_key_of(spec, state.rank.rank);
    state.schedulable = worker->lifecycle == WorkerLifecycle::kSchedulable;
    state.predicts = !(config_.use_kv_events && spec.kv_events);
    // Outside of the partition's lock: following a rank may open sockets.
    if (complete && overlaps_ != nullptr) state.index_slot = overlaps_->add_rank(state.rank, *worker);
    states.push_back(std::move(state));
  }
  std::vector<WorkerRank> gone;
  After after;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    for (const RankTable::Slot slot : ranks_.slots_of(spec.worker_id)) {
      const WorkerRank rank = ranks_[slot].rank;
      if (worker->has_rank(rank.rank)) continue;
      gone.push_back(rank);
      drop_rank(slot, after.now);
    }
    for (RankState& state : states) {
      if (const auto slot = ranks_.find(state.rank); slot && !complete) {
        state.index_slot = ranks_[*slot].index_slot;
      }
      ranks_.put(std::move(state));
    }
    drain(after);
  }
  if (overlaps_ != nullptr) {
    for (const WorkerRank rank : gone) overlaps_->remove_rank(rank);
  }
  finish(after);
}

void Partition::detach(WorkerId worker) {
  std::vector<WorkerRank> gone;
  After after;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    for (const RankTable::Slot slot : ranks_.slots_of(worker)) {
      gone.push_back(ranks_[slot].rank);
      drop_rank(slot, after.now);
    }
    affinity_.forget_worker(worker);
    drain(after);
  }
  if (overlaps_ != nullptr) {
    for (const WorkerRank rank : gone) overlaps_->remove_rank(rank);
  }
  finish(after);
}

void Partition::drop_rank(RankTable::Slot slot, SteadyTime now) {
  for (const std::string& id : ledger_.ids_on(slot)) {
    ++stats_.lost_with_worker;
    end_booking(*ledger_.find(id), now);
  }
  ranks_.erase(slot);
}

std::size_t Partition::ranks() const {
  const std::lock_guard lock(mutex_);
  return ranks_.ranks();
}

void Partition::match(PreparedRequest& request, SteadyTime now) const {
  request.overlaps_at = now;
  request.overlaps.clear();
  if (overlaps_ == nullptr || !config_.options.use_overlap || request.sequence_hashes.empty()) return;
  overlaps_->match(request.sequence_hashes, now, request.overlaps);
}

void Partition::finish(After& after) {
  for (const auto& prediction : after.predictions) {
    overlaps_->predict(prediction.rank, prediction.hashes, after.now);
  }
  if (config_.kv_fetch_hints && overlaps_ != nullptr) {
    after.answers.for_each_selection([this](Selection& selection) {
      if (selection.kv_hint == nullptr) return;
      std::vector<std::uint64_t> engine_hashes;
      if (overlaps_->engine_hashes(selection.kv_hint->block_hashes, engine_hashes)) {
        selection.kv_hint->block_hashes = std::move(engine_hashes);
      } else {
        selection.kv_hint.reset();
      }
    });
  }
  after.answers.give();
}

void Partition::begin(After& after) {
  after.now = clock_();
  ledger_.advance(after.now);
}

Result<Selection> Partition::reserve(PreparedRequest request, const ReservationRequest& wanted) {
  After after;
  std::optional<Result<Selection>> result;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    result = reserve_locked(request, wanted, after);
    if (!*result) ++stats_.failed;
  }
  finish(after);
  return std::move(*result);
}

Result<Selection> Partition::reserve_locked(PreparedRequest& request, const ReservationRequest& wanted,
                                            After& after) {
  const std::string& id = wanted.selection_id;
  if (Booking* booking = ledger_.find(id)) {
    request.request.pinned_worker = wanted.worker;
    return repeat(*booking, request);
  }
  if (stopped_) return SelectionError{SelectionErrorCode::kShuttingDown, std::string(kStoppingText)};
  if (waiting_ids_.contains(id))
    return {SelectionErrorCode::kConflict, "the reservation id is being reserved"};

  SelectionCache::Entry* remembered = nullptr;
  if (wanted.worker) {
    cache_.erase(id);
  } else {
    remembered = cache_.find(id, after.now);
    if (remembered == nullptr) {
      return {SelectionErrorCode::kNotFound,
              "no pending selection has this id: it was used, has expired, or was "
              "never made here"};
    }
  }
  // What fails from here on leaves a remembered selection as it is, for another try.
  const auto slot = ranks_.find(remembered == nullptr ? *wanted.worker : remembered->facts.rank);
  if (!slot ||
      (!ranks_[*slot].schedulable && ranks_[*slot].worker->lifecycle != WorkerLifecycle::kDraining)) {
    return {SelectionErrorCode::kNotFound, "no such schedulable worker and rank"};
  }
  if (ledger_.size() >= config_.limits.max_reservations) {
    return {SelectionErrorCode::kReservationsFull, "too many live reservations"};
  }
  EarlyLifecycle early;
  if (auto refusal = claim(id, after.now, early)) return std::move(*refusal);
  Selection selection;
  selection.selection_id = id;
  selection.worker = ranks_[*slot].worker;
  selection.load = load_of(*slot);
  if (remembered != nullptr) {
    SelectionCache::Entry entry = cache_.take(id);
    selection.facts = entry.facts;
    book(entry.request, *slot, early, selection, after);
    return selection;
  }
  choice_.load_inputs(request);
  selection.facts = choice_.facts_of(*slot, request, choice_.inputs_of(*slot, request));
  selection.facts.effective_prefill_tokens = wanted.effective_prefill_tokens.value_or(request.isl_tokens);
  book(request, *slot, early, selection, after);
  return selection;
}

Booking* Partition::booked(std::string_view id, std::uint64_t attempt) {
  Booking* booking = ledger_.find(id);
  if (booking == nullptr || (attempt != 0 && attempt != booking->attempt)) return nullptr;
  return booking;
}

// A call that names an attempt has seen its booking, so it never means a request that still waits for one.
Partition::Waiter* Partition::waiting(std::string_view id, std::uint64_t attempt) {
  if (attempt != 0) return nullptr;
  const auto found = waiting_ids_.find(id);
  return found == waiting_ids_.end() ? nullptr : &waiters_.at(found->second);
}

LifecycleOutcome Partition::prefill_complete(std::string_view id, std::uint64_t attempt) {
  After after;
  auto outcome = LifecycleOutcome::kAlreadyDone;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    if (Booking* booking = booked(id, attempt)) {
      booking->orphaned_at.reset();
      if (ledger_.complete_prefill(*booking)) {
        outcome = LifecycleOutcome::kApplied;
        drain(after);
      }
    } else if (Waiter* waiter = waiting(id, attempt)) {
      waiter->early.prefill_complete = true;
      outcome = LifecycleOutcome::kRemembered;
    }
  }
  finish(after);
  return outcome;
}

LifecycleOutcome Partition::report_output(std::string_view id, std::uint64_t attempt,
                                          std::uint64_t output_tokens) {
  const std::lock_guard lock(mutex_);
  if (Booking* booking = booked(id, attempt)) {
    booking->orphaned_at.reset();
    return ledger_.report_output(*booking, output_tokens, config_.track_output_blocks)
               ? LifecycleOutcome::kApplied
               : LifecycleOutcome::kAlreadyDone;
  }
  if (Waiter* waiter = waiting(id, attempt)) {
    waiter->early.merge({.output_tokens = output_tokens});
    return LifecycleOutcome::kRemembered;
  }
  return LifecycleOutcome::kAlreadyDone;
}

LifecycleOutcome Partition::add_output_block(std::string_view id, std::uint64_t attempt,
                                             std::optional<double> decay_fraction) {
  const std::lock_guard lock(mutex_);
  Booking* booking = booked(id, attempt);
  if (booking == nullptr) {
    Waiter* waiter = waiting(id, attempt);
    if (waiter == nullptr) return LifecycleOutcome::kAlreadyDone;
    waiter->early.merge({.output_blocks = 1, .decay_fraction = decay_fraction});
    return LifecycleOutcome::kRemembered;
  }
  booking->orphaned_at.reset();
  if (!booking->tracks_blocks || !config_.track_output_blocks) return LifecycleOutcome::kAlreadyDone;
  ledger_.add_output_blocks(*booking, 1, decay_fraction);
  return LifecycleOutcome::kApplied;
}

LifecycleOutcome Partition::renew(std::string_view id, std::uint64_t attempt) {
  const std::lock_guard lock(mutex_);
  Booking* booking = booked(id, attempt);
  if (booking == nullptr) return LifecycleOutcome::kAlreadyDone;
  booking->orphaned_at.reset();
  return LifecycleOutcome::kApplied;
}

LifecycleOutcome Partition::free(std::string_view id, std::uint64_t attempt) {
  After after;
  auto outcome = LifecycleOutcome::kAlreadyDone;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    if (Booking* booking = booked(id, attempt)) {
      ++stats_.freed;
      end_booking(*booking, after.now);
      drain(after);
      outcome = LifecycleOutcome::kApplied;
    } else if (waiting(id, attempt) != nullptr) {
      const auto found = waiting_ids_.find(id);
      const Ticket ticket = found->second;
      const std::string key = found->first;
      queue_.remove(ticket);
      answer_waiter(ticket, {SelectionErrorCode::kFinished, "freed while it waited"}, after);
      ++stats_.cancelled;
      // Finished for good, as if the free had come first.
      bool finished = false;
      directory_.find_or_finish(key, after.now, finished);
      drain(after);
      outcome = LifecycleOutcome::kApplied;
    }
  }
  finish(after);
  return outcome;
}

void Partition::end_booking(Booking& booking, SteadyTime now) {
  // An id that only its holder knows does not come again.
  if (booking.has_holder) {
    directory_.release(*booking.id, {}, now);
  } else {
    directory_.retire(*booking.id, now);
  }
  ledger_.release(booking);
}

WorkerLoad Partition::load_of(RankTable::Slot slot) const {
  const auto load = ledger_.load(slot);
  const WorkerSpec& spec = ranks_[slot].worker->spec;
  return {ranks_[slot].rank,    load.active_prefill_tokens,  load.active_decode_blocks,
          load.active_requests, spec.max_num_batched_tokens, spec.total_kv_blocks};
}

PartitionLoads Partition::loads() const {
  PartitionLoads answer;
  answer.partition = key_;
  const std::lock_guard lock(mutex_);
  ledger_.advance(clock_());
  for (RankTable::Slot slot = 0; slot < ranks_.slots().size(); ++slot) {
    if (ranks_[slot].worker != nullptr) answer.loads.push_back(load_of(slot));
  }
  sort_by_rank(answer.loads);
  answer.pending_count = queue_.size();
  answer.pending_isl_tokens = queue_.pending_isl_tokens();
  return answer;
}

std::vector<PotentialLoad> Partition::potential_loads(const PreparedRequest& request) const {
  std::vector<PotentialLoad> rows;
  const std::lock_guard lock(mutex_);
  ledger_.advance(clock_());
  choice_.load_inputs(request);
  for (RankTable::Slot slot = 0; slot < ranks_.slots().size(); ++slot) {
    if (!ranks_[slot].schedulable) continue;
    const CostInputs inputs = choice_.inputs_of(slot, request);
    const SelectionFacts facts = choice_.facts_of(slot, request, inputs);
    const std::uint64_t added = facts.track_prefill_tokens ? facts.effective_prefill_tokens : 0;
    rows.push_back({facts.rank, inputs.active_prefill_tokens + added, facts.potential_decode_blocks,
                    inputs.active_requests});
  }
  sort_by_rank(rows);
  return rows;
}

OverlapScoresAnswer Partition::overlap_scores(const PreparedRequest& request) const {
  OverlapScoresAnswer answer;
  answer.block_size = block_size_;
  answer.num_blocks = request.sequence_hashes.size();
  const std::lock_guard lock(mutex_);
  choice_.load_inputs(request);
  for (RankTable::Slot slot = 0; slot < ranks_.slots().size(); ++slot) {
    if (!ranks_[slot].schedulable) continue;
    const CostInputs inputs = choice_.inputs_of(slot, request);
    OverlapScoreRow row;
    row.rank = ranks_[slot].rank;
    row.device_blocks = inputs.device_blocks;
    row.host_pinned_blocks = inputs.device_blocks + inputs.host_blocks;
    row.disk_blocks = row.host_pinned_blocks + inputs.disk_blocks;
    row.host_pinned_extension_blocks = inputs.host_blocks;
    row.disk_extension_blocks = inputs.disk_blocks;
    row.shared_beyond_device_blocks = inputs.shared_blocks;
    // Without the decay, which depends on who else is a candidate.
    row.router_credit_blocks = evaluate_cost(request.cost, inputs, inputs.active_prefill_tokens).credit;
    answer.workers.push_back(row);
  }
  sort_by_rank(answer.workers);
  return answer;
}

SelectionStats Partition::stats() const {
  const std::lock_guard lock(mutex_);
  SelectionStats stats = stats_;
  stats.live_reservations = ledger_.size();
  stats.waiting = queue_.size();
  stats.sessions = affinity_.size();
  stats.tracked_blocks = ledger_.blocks().stored_blocks();
  stats.remembered_selections = cache_.size();
  return stats;
}

std::vector<std::string> Partition::kv_problems() const {
  return overlaps_ == nullptr ? std::vector<std::string>() : overlaps_->problems();
}

KvStatus Partition::kv_status() const {
  KvStatus status;
  if (overlaps_ != nullptr) status = overlaps_->status();
  status.partition = key_;
  return status;
}

std::optional<SteadyTime> Partition::maintain() {
  const SteadyTime now = clock_();
  sweep_orphans(now);
  if (overlaps_ != nullptr) overlaps_->maintain(now);
  After after;
  std::optional<SteadyTime> next;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    affinity_.drop_expired(now);
    cache_.drop_expired(now);
    drain(after);
    next = queue_.next_deadline();
    if (!joined_deadlines_.empty()) {
      next = std::min(next.value_or(SteadyTime::max()), joined_deadlines_.begin()->at);
    }
  }
  finish(after);
  return next;
}

void Partition::sweep_orphans(SteadyTime now) {
  std::size_t chunks = 0;
  bool done = false;
  while (!done) {
    const std::lock_guard lock(mutex_);
    ledger_.advance(now);
    // Bookings that arrive meanwhile are at the end of the round and need no look yet.
    if (chunks == 0) chunks = ledger_.size() / kSweepChunk + 2;
    for (const std::string& id : ledger_.sweep(now, config_.active_request_expiry, kSweepChunk, done)) {
      ++stats_.orphans_expired;
      end_booking(*ledger_.find(id), now);
    }
    done = done || --chunks == 0;
  }
}

void Partition::stop() {
  After after;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    stopped_ = true;
    for (const Ticket ticket : queue_.tickets()) {
      queue_.remove(ticket);
      ++stats_.failed;
      answer_waiter(ticket, {SelectionErrorCode::kShuttingDown, std::string(kStoppingText)}, after);
    }
  }
  finish(after);
}

}  // namespace handoff::epp
