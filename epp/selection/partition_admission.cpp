// The way of a request through its partition: repeat or claim its id, wait if it must, choose, book.

#include <algorithm>
#include <utility>

#include "epp/selection/partition.hpp"

namespace handoff::epp {
namespace {

// Where a worker does not say how many tokens it batches, it counts as one that is never busy by fraction.
constexpr std::uint64_t kUnknownBatchTokens = 10'000'000;
// Callers that may wait for one id at the same time.
constexpr std::size_t kMaxParties = 16;

bool allows(const SelectRequest& request, WorkerRank rank) {
  if (request.pinned_worker && *request.pinned_worker != rank) return false;
  const auto& allowed = request.allowed_workers;
  return !allowed || std::binary_search(allowed->begin(), allowed->end(), rank.worker);
}

SelectionError late_error() {
  return {SelectionErrorCode::kDeadlineExceeded, "the queue deadline has passed"};
}

SelectionError rejected(QueueRejection rejection) {
  SelectionError error{SelectionErrorCode::kQueueRejected, "the queue of its policy class is full"};
  error.rejection = std::move(rejection);
  return error;
}

}  // namespace

std::optional<Partition::Waiting> Partition::submit(PreparedRequest&& request, SelectionCallback&& done) {
  After after;
  std::optional<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    waiting = submit_locked(request, done, after);
  }
  finish(after);
  return waiting;
}

std::optional<Partition::Waiting> Partition::submit_locked(PreparedRequest& request, SelectionCallback& done,
                                                           After& after) {
  const std::string& id = request.request.selection_id;
  if (request.book) {
    if (Booking* booking = ledger_.find(id)) {
      after.answers.add(std::move(done), repeat(*booking, request));
      return std::nullopt;
    }
    if (const auto same = waiting_ids_.find(id); same != waiting_ids_.end()) {
      return join_waiter(same->second, request, done, after);
    }
  }
  std::optional<SelectionError> refusal;
  EarlyLifecycle early;
  if (stopped_) {
    refusal = SelectionError{SelectionErrorCode::kShuttingDown, "the selection service is shutting down"};
  } else if (ranks_.schedulable_ranks() == 0) {
    refusal = SelectionError{SelectionErrorCode::kNotReady, "no schedulable worker for this model and group"};
  } else if (request.request.queue_deadline && *request.request.queue_deadline <= after.now) {
    refusal = late_error();
    ++stats_.deadline_exceeded;
  } else if (request.book) {
    refusal = claim(id, after.now, early);
  }
  if (refusal) {
    if (refusal->code != SelectionErrorCode::kDeadlineExceeded) ++stats_.failed;
    after.answers.add(std::move(done), std::move(*refusal));
    return std::nullopt;
  }
  if (const auto entry = must_wait(request, after.now, after.now)) {
    return enqueue(*entry, request, early, done, after);
  }
  auto result = decide(request, early, after);
  if (!result && request.book) directory_.release(id, early, after.now);
  after.answers.add(std::move(done), std::move(result));
  return std::nullopt;
}

std::optional<SelectionError> Partition::claim(const std::string& id, SteadyTime now, EarlyLifecycle& early) {
  switch (directory_.claim(id, shared_from_this(), now, early)) {
    case ReservationDirectory::Claim::kClaimed:
      return std::nullopt;
    case ReservationDirectory::Claim::kFinished:
      return SelectionError{SelectionErrorCode::kFinished, "the reservation was already freed"};
    case ReservationDirectory::Claim::kAlreadyHere:
    case ReservationDirectory::Claim::kElsewhere:
      break;
  }
  return SelectionError{SelectionErrorCode::kConflict, "the reservation id is in use for another partition"};
}

// The same id while the first call still waits: one booking, and every caller gets it.
std::optional<Partition::Waiting> Partition::join_waiter(Ticket ticket, PreparedRequest& request,
                                                         SelectionCallback& done, After& after) {
  Waiter& waiter = waiters_.at(ticket);
  const auto& deadline = request.request.queue_deadline;
  const bool is_late = deadline && *deadline <= after.now;
  if (is_late || waiter.parties.size() >= kMaxParties) {
    ++(is_late ? stats_.deadline_exceeded : stats_.failed);
    after.answers.add(std::move(done), is_late ? late_error()
                                               : SelectionError{SelectionErrorCode::kConflict,
                                                                "too many calls wait for this id"});
    return std::nullopt;
  }
  const std::uint64_t number = next_party_++;
  if (deadline) joined_deadlines_.insert({*deadline, ticket, number});
  waiter.parties.push_back(
      {number, std::move(done), std::make_unique<SelectRequest>(std::move(request.request))});
  return Waiting{ticket, number};
}

Result<Selection> Partition::repeat(Booking& booking, const PreparedRequest& request) {
  if (!allows(request.request, booking.facts.rank)) {
    ++stats_.failed;
    return {SelectionErrorCode::kConflict, "the id is booked on a worker that this request does not allow"};
  }
  if (request.request.holder && !booking.add_holder(*request.request.holder)) {
    ++stats_.failed;
    return {SelectionErrorCode::kConflict, "too many callers hold this booking"};
  }
  ++stats_.repeated_bookings;
  Selection selection;
  selection.selection_id = *booking.id;
  selection.facts = booking.facts;
  selection.worker = booking.worker;
  selection.booked = true;
  selection.repeated = true;
  selection.attempt = booking.attempt;
  selection.load = load_of(booking.slot);
  // An id is one request, so the prompt of this call is that of the booking; one that is not gets no facts.
  if (request.isl_tokens == booking.facts.isl_tokens) {
    if (request.request.return_booking_facts) selection.sequence_hashes = request.booking_hashes();
    if (config_.kv_fetch_hints) selection.kv_hint = fetch_hint(request, booking.slot, selection);
  }
  if (request.request.holder) return selection;
  selection.lease = Lease(booking.lease.lock());
  if (!selection.lease) {
    selection.lease = Lease::make();
    booking.lease = selection.lease.watch();
  }
  return selection;
}

std::optional<QueueEntry> Partition::must_wait(const PreparedRequest& request, SteadyTime now,
                                               SteadyTime arrived) {
  const bool admits_all = !profile_.queues() && !profile_.has_closed_class();
  if (request.request.advisory || admits_all) return std::nullopt;
  filter_.collect_for_admission(request, now, candidates_);
  // Nobody to wait for: the choice itself says why.
  if (candidates_.error) return std::nullopt;

  choice_.load_inputs(request);
  std::uint64_t best_cached = 0;
  for (const auto slot : candidates_.slots) {
    best_cached = std::max(best_cached, cached_tokens(request.cost, choice_.inputs_of(slot, request)));
  }
  QueueEntry entry;
  entry.raw_isl_tokens = request.isl_tokens;
  entry.cached_tokens = best_cached;
  const std::uint64_t uncached = request.isl_tokens - best_cached;
  entry.cost = std::max<std::uint64_t>(1, uncached);
  entry.class_index = profile_.classify(request.request.policy_class, uncached);
  const PolicyClass& policy_class = profile_.policy_classes[entry.class_index];
  if (policy_class.is_closed()) return entry;  // the queue has no room for it
  if (!policy_class.queues()) return std::nullopt;
  if (queue_.backlog(entry.class_index) == 0 && !all_busy(policy_class, candidates_.slots)) {
    return std::nullopt;
  }
  entry.pinned_lane = candidates_.lane;
  entry.strict_priority = request.request.strict_priority;
  entry.deadline = request.request.queue_deadline;
  const std::chrono::duration<double> arrival = arrived - created_;
  entry.score =
      queue_score(policy_class.queue_policy, request.request.priority_jump, arrival.count(), entry.cost);
  return entry;
}

std::optional<Partition::Waiting> Partition::enqueue(QueueEntry entry, PreparedRequest& request,
                                                     const EarlyLifecycle& early, SelectionCallback& done,
                                                     After& after) {
  entry.ticket = next_ticket_++;
  if (auto rejection = queue_.push(entry, ranks_.schedulable_workers())) {
    ++stats_.rejected_by_limit;
    if (request.book) directory_.release(request.request.selection_id, early, after.now);
    after.answers.add(std::move(done), rejected(std::move(*rejection)));
    return std::nullopt;
  }
  ++stats_.queued;
  const Waiting place{entry.ticket, next_party_++};
  if (request.book) waiting_ids_.emplace(request.request.selection_id, entry.ticket);
  Waiter& waiter = waiters_[entry.ticket];
  waiter.prepared = std::move(request);
  waiter.since = after.now;
  waiter.early = early;
  waiter.parties.push_back({place.party, std::move(done)});
  // A lane of its own or a class with backlog may well be dispatchable already. Nothing has changed for the
  // others, so there is no need to look at every lane when it is not.
  if (can_dispatch(place.ticket, after.now)) drain(after);
  if (!waiters_.contains(place.ticket)) return std::nullopt;
  return place;
}

void Partition::drain(After& after) {
  if (queue_.empty()) return;
  expire(after.now, after);
  const AdmissionQueue::Ready ready = [&](Ticket ticket) { return can_dispatch(ticket, after.now); };
  while (const auto ticket = queue_.pop(ready)) dispatch(*ticket, after);
}

// Every caller's deadline is its own: who joined leaves alone, and the first one leaves the place to the
// next.
void Partition::expire(SteadyTime now, After& after) {
  while (!joined_deadlines_.empty() && joined_deadlines_.begin()->at <= now) {
    const JoinedDeadline due = *joined_deadlines_.begin();
    joined_deadlines_.erase(joined_deadlines_.begin());
    auto& parties = waiters_.at(due.ticket).parties;
    const auto party = std::find_if(parties.begin(), parties.end(),
                                    [&](const Party& entry) { return entry.number == due.party; });
    ++stats_.deadline_exceeded;
    after.answers.add(std::move(party->done), late_error());
    parties.erase(party);
  }
  for (const Ticket ticket : queue_.take_expired(now)) {
    ++stats_.deadline_exceeded;
    Waiter waiter = take_waiter(ticket);
    after.answers.add(std::move(waiter.parties.front().done), late_error());
    waiter.parties.erase(waiter.parties.begin());
    pass_on(ticket, std::move(waiter), after);
  }
}

bool Partition::can_dispatch(Ticket ticket, SteadyTime now) {
  const PreparedRequest& request = waiters_.at(ticket).prepared;
  const PolicyClass& policy_class = profile_.policy_classes[queue_.class_of(ticket)];
  const auto& session = request.request.session;
  if (config_.affinity.mode == AffinityMode::kHard && session && !request.request.pinned_worker) {
    // One for each lane: while its session's rank can take it, there is no need to look at the others.
    const auto bound = affinity_.find(session->session_id, now);
    const auto slot = bound ? ranks_.find(*bound) : std::nullopt;
    if (slot && filter_.check(*slot, request) == Eligibility::kEligible) return !busy(policy_class, *slot);
  }
  filter_.collect_for_admission(request, now, candidates_);
  return candidates_.error || !all_busy(policy_class, candidates_.slots);
}

void Partition::dispatch(Ticket ticket, After& after) {
  Waiter waiter = take_waiter(ticket);
  const auto waited = after.now - waiter.since;
  ++stats_.dispatched_from_queue;
  stats_.queue_wait += waited;
  if (config_.overlap_refresh_after.count() > 0 && waited > config_.overlap_refresh_after) {
    match(waiter.prepared, after.now);
  }
  if (!settle(waiter, after)) pass_on(ticket, std::move(waiter), after);
}

// Chooses for the first of the callers. If that books, all the others repeat it. False: there is no choice
// for the first one, who was told so and is gone.
bool Partition::settle(Waiter& waiter, After& after) {
  PreparedRequest& request = waiter.prepared;
  // What the booking consumes and the others' answers are made of.
  std::optional<PreparedRequest> again;
  if (waiter.parties.size() > 1) again = request;
  auto first = decide(request, waiter.early, after);
  const bool is_chosen = first.has_value();
  if (is_chosen) first->waited = after.now - waiter.since;
  after.answers.add(std::move(waiter.parties.front().done), std::move(first));
  waiter.parties.erase(waiter.parties.begin());
  if (!is_chosen) return false;
  for (Party& party : waiter.parties) {
    again->request = std::move(*party.joined);
    after.answers.add(std::move(party.done), repeat(*ledger_.find(again->request.selection_id), *again));
  }
  return true;
}

// The first caller left without an answer for the others: the next one's request takes its place, and its
// age, with whatever that caller asks for. The prompt stays: one id is one request.
void Partition::pass_on(Ticket ticket, Waiter waiter, After& after) {
  while (!waiter.parties.empty()) {
    Party& first = waiter.parties.front();
    waiter.prepared.request = std::move(*std::exchange(first.joined, nullptr));
    auto entry = must_wait(waiter.prepared, after.now, waiter.since);
    if (!entry) {
      if (settle(waiter, after)) return;
      continue;
    }
    entry->ticket = ticket;
    if (auto rejection = queue_.push(*entry, ranks_.schedulable_workers())) {
      ++stats_.rejected_by_limit;
      after.answers.add(std::move(first.done), rejected(std::move(*rejection)));
      waiter.parties.erase(waiter.parties.begin());
      continue;
    }
    for (std::size_t i = 1; i < waiter.parties.size(); ++i) {
      const Party& party = waiter.parties[i];
      if (party.joined->queue_deadline) {
        joined_deadlines_.insert({*party.joined->queue_deadline, ticket, party.number});
      }
    }
    waiting_ids_.emplace(waiter.prepared.request.selection_id, ticket);
    waiters_.emplace(ticket, std::move(waiter));
    return;
  }
  if (waiter.prepared.book) {
    directory_.release(waiter.prepared.request.selection_id, waiter.early, after.now);
  }
}

// Out of the tables; the queue's entry and the claim of the id are the caller's affair.
Partition::Waiter Partition::take_waiter(Ticket ticket) {
  Waiter waiter = std::move(waiters_.extract(ticket).mapped());
  if (waiter.prepared.book) waiting_ids_.erase(waiter.prepared.request.selection_id);
  for (const Party& party : waiter.parties) forget_deadline(ticket, party);
  return waiter;
}

void Partition::forget_deadline(Ticket ticket, const Party& party) {
  if (party.joined == nullptr || !party.joined->queue_deadline) return;
  joined_deadlines_.erase({*party.joined->queue_deadline, ticket, party.number});
}

void Partition::answer_waiter(Ticket ticket, const SelectionError& error, After& after) {
  Waiter waiter = take_waiter(ticket);
  if (waiter.prepared.book) {
    directory_.release(waiter.prepared.request.selection_id, waiter.early, after.now);
  }
  for (Party& party : waiter.parties) after.answers.add(std::move(party.done), error);
}

bool Partition::cancel(Waiting place) {
  After after;
  bool removed = false;
  {
    const std::lock_guard lock(mutex_);
    begin(after);
    const auto found = waiters_.find(place.ticket);
    if (found == waiters_.end()) return false;
    auto& parties = found->second.parties;
    const auto party = std::find_if(parties.begin(), parties.end(),
                                    [&](const Party& entry) { return entry.number == place.party; });
    if (party == parties.end()) return false;
    removed = true;
    ++stats_.cancelled;
    after.answers.add(std::move(party->done),
                      SelectionError{SelectionErrorCode::kCancelled, "cancelled while waiting"});
    if (party != parties.begin()) {
      forget_deadline(place.ticket, *party);
      parties.erase(party);
    } else {
      queue_.remove(place.ticket);
      Waiter waiter = take_waiter(place.ticket);
      waiter.parties.erase(waiter.parties.begin());
      pass_on(place.ticket, std::move(waiter), after);
      // It may have been the head that others could not pass.
      drain(after);
    }
  }
  finish(after);
  return removed;
}

Result<Selection> Partition::decide(PreparedRequest& request, const EarlyLifecycle& early, After& after) {
  filter_.collect_for_choice(request, after.now, candidates_);
  if (!candidates_.error && request.book && ledger_.size() >= config_.limits.max_reservations) {
    candidates_.error = {SelectionErrorCode::kReservationsFull, "too many live reservations"};
  }
  if (candidates_.error) {
    ++stats_.failed;
    return std::move(*candidates_.error);
  }
  Selection selection;
  if (request.request.explain) selection.explanation = std::make_unique<Explanation>();
  const auto chosen = choice_.choose(request, candidates_, filter_, selection.explanation.get());
  selection.selection_id = request.request.selection_id;
  selection.facts = chosen.facts;
  selection.worker = ranks_[chosen.slot].worker;
  selection.load = load_of(chosen.slot);
  if (profile_.queues()) {
    const auto uncached = chosen.facts.effective_prefill_tokens;
    const PolicyClass& policy_class =
        profile_.policy_classes[profile_.classify(request.request.policy_class, uncached)];
    if (policy_class.queues()) selection.prefill_busy = busy(policy_class, chosen.slot);
    if (selection.explanation != nullptr) selection.explanation->policy_class = policy_class.name;
  }
  if (request.request.return_booking_facts) selection.sequence_hashes = request.booking_hashes();
  ++stats_.selections;
  if (request.book) {
    book(request, chosen.slot, early, selection, after);
  } else if (request.is_named) {
    cache_.put({std::move(request), selection.facts}, after.now);
  }
  return selection;
}

void Partition::book(PreparedRequest& request, RankTable::Slot slot, const EarlyLifecycle& early,
                     Selection& selection, After& after) {
  const SelectionFacts& facts = selection.facts;
  BookingLoad load;
  if (facts.track_prefill_tokens && !early.prefill_complete) {
    load.prefill_tokens = facts.effective_prefill_tokens;
    if (prefill_duration_) {
      load.prefill_duration = prefill_duration_(facts.rank, facts.effective_prefill_tokens,
                                                facts.isl_tokens - facts.effective_prefill_tokens);
    }
  }
  if (request.shares_blocks) {
    load.sequence_hashes = request.tracked_hashes();
    load.unshared_blocks = request.tracked_blocks - load.sequence_hashes.size() * ledger_.stride();
  } else {
    load.unshared_blocks = request.tracked_blocks;
  }
  load.isl_tokens = request.isl_tokens;
  load.block_size = block_size_;
  load.expected_output_tokens = request.request.expected_output_tokens;
  load.tracks_blocks = config_.options.track_blocks;

  Booking& booking = ledger_.book(request.request.selection_id, slot, load);
  booking.attempt = directory_.next_attempt();
  booking.facts = facts;
  booking.worker = selection.worker;
  if (request.request.holder) {
    booking.holder = std::move(*request.request.holder);
    booking.has_holder = true;
  } else {
    selection.lease = Lease::make();
    booking.lease = selection.lease.watch();
  }
  if (early.output_tokens > 0) {
    ledger_.report_output(booking, early.output_tokens, config_.track_output_blocks);
  }
  if (early.output_blocks > 0 && load.tracks_blocks && config_.track_output_blocks) {
    ledger_.add_output_blocks(booking, early.output_blocks, early.decay_fraction);
  }
  selection.booked = true;
  selection.attempt = booking.attempt;
  if (config_.kv_fetch_hints) selection.kv_hint = fetch_hint(request, slot, selection);
  cache_.erase(*booking.id);
  ++stats_.bookings;
  bind_session(request.request, facts.rank, after.now);
  if (ranks_[slot].predicts && overlaps_ != nullptr && config_.router_ttl.count() > 0 &&
      !request.sequence_hashes.empty()) {
    after.predictions.push_back({facts.rank, std::move(request.sequence_hashes)});
  }
}

// The best source is the rank with the longest device prefix, if that is longer than all the chosen rank has.
std::unique_ptr<KvFetchHint> Partition::fetch_hint(const PreparedRequest& request, RankTable::Slot target,
                                                   const Selection& selection) const {
  const std::string& kind = ranks_[target].worker->spec.router_hint_worker_type;
  if (kind.empty() || overlaps_ == nullptr) return nullptr;
  std::uint32_t longest = 0;
  for (const RankOverlap& row : request.overlaps) {
    if (row.rank == ranks_[target].rank) longest = row.total();
  }
  const std::string* endpoint = nullptr;
  WorkerRank source;
  for (const RankOverlap& row : request.overlaps) {
    const auto slot = ranks_.slot_of(row);
    if (!slot || *slot == target) continue;
    const WorkerSpec& spec = ranks_[*slot].worker->spec;
    const auto address = spec.router_hint_source_control_endpoints.find(row.rank.rank);
    if (spec.router_hint_worker_type != kind || address == spec.router_hint_source_control_endpoints.end()) {
      continue;
    }
    const bool better =
        row.device > longest || (endpoint != nullptr && row.device == longest && row.rank < source);
    if (!better) continue;
    longest = row.device;
    endpoint = &address->second;
    source = row.rank;
  }
  if (endpoint == nullptr) return nullptr;
  auto hint = std::make_unique<KvFetchHint>();
  // Ours for the time being: finish() puts the engine's in their place, without the lock.
  hint->block_hashes.assign(request.sequence_hashes.begin(), request.sequence_hashes.begin() + longest);
  hint->message_id = selection.selection_id;
  hint->source = source;
  hint->source_control_endpoint = *endpoint;
  return hint;
}

void Partition::bind_session(const SelectRequest& request, WorkerRank rank, SteadyTime now) {
  if (config_.affinity.mode == AffinityMode::kOff || !request.session) return;
  if (request.session->final) {
    affinity_.end(request.session->session_id);
  } else if (!affinity_.bind(request.session->session_id, rank, now)) {
    ++stats_.affinity_table_full;
  }
}

bool Partition::all_busy(const PolicyClass& policy_class, const std::vector<RankTable::Slot>& slots) const {
  return std::all_of(slots.begin(), slots.end(),
                     [&](RankTable::Slot slot) { return busy(policy_class, slot); });
}

bool Partition::busy(const PolicyClass& policy_class, RankTable::Slot slot) const {
  const std::uint64_t active = ledger_.load(slot).active_prefill_tokens;
  if (policy_class.prefill_busy_threshold && active > *policy_class.prefill_busy_threshold) return true;
  if (!policy_class.prefill_busy_threshold_frac) return false;
  const std::uint64_t capacity =
      ranks_[slot].worker->spec.max_num_batched_tokens.value_or(kUnknownBatchTokens);
  return static_cast<double>(active) >
         *policy_class.prefill_busy_threshold_frac * static_cast<double>(capacity);
}

}  // namespace handoff::epp
