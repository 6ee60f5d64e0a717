#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "epp/selection/admission_queue.hpp"
#include "epp/selection/candidate_filter.hpp"
#include "epp/selection/overlap_source.hpp"
#include "epp/selection/reservation_directory.hpp"
#include "epp/selection/selection_cache.hpp"
#include "epp/selection/selection_callback.hpp"
#include "epp/selection/worker_choice.hpp"

namespace handoff::epp {

struct SelectionStats {
  std::uint64_t selections = 0;  // answered with a worker, bookings included
  std::uint64_t bookings = 0;
  std::uint64_t repeated_bookings = 0;
  std::uint64_t queued = 0;
  std::uint64_t dispatched_from_queue = 0;
  std::uint64_t rejected_by_limit = 0;
  std::uint64_t deadline_exceeded = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;  // other errors
  std::uint64_t freed = 0;
  std::uint64_t orphans_expired = 0;
  std::uint64_t lost_with_worker = 0;  // bookings dropped because their worker or rank left
  std::uint64_t affinity_table_full = 0;
  std::chrono::nanoseconds queue_wait{0};  // sum over dispatched_from_queue
  std::uint64_t live_reservations = 0;
  std::uint64_t waiting = 0;
  std::uint64_t sessions = 0;
  std::uint64_t tracked_blocks = 0;
  std::uint64_t remembered_selections = 0;  // by the selection cache

  SelectionStats& operator+=(const SelectionStats& other);
};

struct PartitionLoads {
  PartitionKey partition;
  std::vector<WorkerLoad> loads;  // by (worker, rank)
  std::uint64_t pending_count = 0;
  std::uint64_t pending_isl_tokens = 0;
};

struct PotentialLoad {
  WorkerRank rank;
  std::uint64_t potential_prefill_tokens = 0;
  std::uint64_t potential_decode_blocks = 0;
  std::uint32_t active_requests = 0;
};

struct OverlapScoreRow {
  WorkerRank rank;
  std::uint32_t device_blocks = 0;
  std::uint32_t host_pinned_blocks = 0;  // cumulative
  std::uint32_t disk_blocks = 0;         // cumulative, external ones included
  std::uint32_t host_pinned_extension_blocks = 0;
  std::uint32_t disk_extension_blocks = 0;
  std::uint32_t shared_beyond_device_blocks = 0;
  double router_credit_blocks = 0.0;
};

struct OverlapScoresAnswer {
  std::uint32_t block_size = 0;
  std::uint64_t num_blocks = 0;
  std::vector<OverlapScoreRow> workers;  // by (worker, rank)
};

enum class LifecycleOutcome : std::uint8_t {
  kApplied,
  kAlreadyDone,  // nothing left to change: repeated, or after the free
  kRemembered,   // the id is not booked (yet); its booking will find the call
};

// How long a rank is expected to take for the prefill of a booking: `effective_tokens` to be computed behind
// `cached_tokens`. nullopt: it can't be told. Called under a lock for each booking, so quick and not back
// into the service.
using PrefillDurationModel = std::function<std::optional<std::chrono::nanoseconds>(
    WorkerRank rank, std::uint64_t effective_tokens, std::uint64_t cached_tokens)>;

// All state of one (model, routing group): ranks, load, bookings, queue, sessions. Choosing and booking
// happen under one lock, so no two requests decide from the same load.
//
// Owner: SelectionService, shared with running calls. Threads: any, except that attach, detach and
// refresh_worker are called by one thread at a time (the service's catalog lock). Ends when its last worker
// is detached: whoever still waits is answered, later calls find no worker.
class Partition : public std::enable_shared_from_this<Partition> {
 public:
  struct Deps {
    const SelectorConfig& config;
    ReservationDirectory& directory;
    const std::function<SteadyTime()>& clock;
    const PrefillDurationModel& prefill_duration;  // null: pending prefill stays whole until it is complete
    std::unique_ptr<OverlapSource> overlaps;       // null: load only
  };
  Partition(PartitionKey key, std::uint32_t block_size, bool is_eagle, Deps deps);
  ~Partition();

  const PartitionKey& key() const { return key_; }
  std::uint32_t block_size() const { return block_size_; }
  bool is_eagle() const { return is_eagle_; }

  // Adds or updates a worker. Bookings on ranks it no longer has are dropped.
  void attach(const std::shared_ptr<const WorkerRecord>& worker);
  void detach(WorkerId worker);
  std::size_t ranks() const;

  void match(PreparedRequest& request, SteadyTime now) const;

  struct Waiting {
    Ticket ticket = 0;
    std::uint64_t party = 0;
  };
  // Answers `done` now, or keeps it and returns where it waits.
  std::optional<Waiting> submit(PreparedRequest&& request, SelectionCallback&& done);
  bool cancel(Waiting waiting);
  Result<Selection> reserve(PreparedRequest request, const ReservationRequest& explicit_request);

  LifecycleOutcome prefill_complete(std::string_view id, std::uint64_t attempt);
  LifecycleOutcome report_output(std::string_view id, std::uint64_t attempt, std::uint64_t output_tokens);
  LifecycleOutcome add_output_block(std::string_view id, std::uint64_t attempt,
                                    std::optional<double> decay_fraction);
  LifecycleOutcome renew(std::string_view id, std::uint64_t attempt);
  LifecycleOutcome free(std::string_view id, std::uint64_t attempt);

  PartitionLoads loads() const;
  std::vector<PotentialLoad> potential_loads(const PreparedRequest& request) const;
  OverlapScoresAnswer overlap_scores(const PreparedRequest& request) const;
  SelectionStats stats() const;
  std::vector<std::string> kv_problems() const;
  KvStatus kv_status() const;

  // Expires orphans, due waiters and old sessions; looks at the queue again. Returns when the next waiter is
  // due.
  std::optional<SteadyTime> maintain();
  void stop();

 private:
  struct Party {
    std::uint64_t number = 0;
    SelectionCallback done;
    // What this caller asks for, which need not be what the first one does; null: `prepared` is its request.
    std::unique_ptr<SelectRequest> joined = nullptr;
  };
  struct Waiter {
    PreparedRequest prepared;    // the first party's
    std::vector<Party> parties;  // more than one when the same id was submitted again
    SteadyTime since;
    EarlyLifecycle early;
  };
  // What has to happen after the lock.
  struct After {
    AnswerBatch answers;
    struct Prediction {
      WorkerRank rank;
      std::vector<std::uint64_t> hashes;
    };
    std::vector<Prediction> predictions;
    SteadyTime now;
  };

  // All of these under the lock.
  void begin(After& after);
  Result<Selection> reserve_locked(PreparedRequest& request, const ReservationRequest& wanted, After& after);
  std::unique_ptr<KvFetchHint> fetch_hint(const PreparedRequest& request, RankTable::Slot target,
                                          const Selection& selection) const;
  std::optional<Waiting> submit_locked(PreparedRequest& request, SelectionCallback& done, After& after);
  std::optional<Waiting> join_waiter(Ticket ticket, PreparedRequest& request, SelectionCallback& done,
                                     After& after);
  Result<Selection> repeat(Booking& booking, const PreparedRequest& request);
  std::optional<SelectionError> claim(const std::string& id, SteadyTime now, EarlyLifecycle& early);
  // Where the request has to wait; nullopt when it can go now. Fills lane, class, costs.
  std::optional<QueueEntry> must_wait(const PreparedRequest& request, SteadyTime now, SteadyTime arrival);
  std::optional<Waiting> enqueue(QueueEntry entry, PreparedRequest& request, const EarlyLifecycle& early,
                                 SelectionCallback& done, After& after);
  Result<Selection> decide(PreparedRequest& request, const EarlyLifecycle& early, After& after);
  void book(PreparedRequest& request, RankTable::Slot slot, const EarlyLifecycle& early, Selection& selection,
            After& after);
  void bind_session(const SelectRequest& request, WorkerRank rank, SteadyTime now);
  void drain(After& after);
  void expire(SteadyTime now, After& after);
  void dispatch(Ticket ticket, After& after);
  bool settle(Waiter& waiter, After& after);
  void pass_on(Ticket ticket, Waiter waiter, After& after);
  Waiter take_waiter(Ticket ticket);
  void forget_deadline(Ticket ticket, const Party& party);
  void answer_waiter(Ticket ticket, const SelectionError& error, After& after);
  bool can_dispatch(Ticket ticket, SteadyTime now);
  bool all_busy(const PolicyClass& policy_class, const std::vector<RankTable::Slot>& slots) const;
  bool busy(const PolicyClass& policy_class, RankTable::Slot slot) const;
  void drop_rank(RankTable::Slot slot, SteadyTime now);
  void end_booking(Booking& booking, SteadyTime now);
  WorkerLoad load_of(RankTable::Slot slot) const;
  Booking* booked(std::string_view id, std::uint64_t attempt);
  Waiter* waiting(std::string_view id, std::uint64_t attempt);

  void finish(After& after);
  void sweep_orphans(SteadyTime now);

  const PartitionKey key_;
  const std::uint32_t block_size_;
  const bool is_eagle_;
  const SelectorConfig& config_;
  const PolicyProfile profile_;
  ReservationDirectory& directory_;
  const std::function<SteadyTime()>& clock_;
  const PrefillDurationModel& prefill_duration_;
  const std::unique_ptr<OverlapSource> overlaps_;
  const SteadyTime created_;

  mutable std::mutex mutex_;
  RankTable ranks_;
  mutable LoadLedger ledger_;  // what is asked for is told as of now
  SessionAffinity affinity_;
  CandidateFilter filter_;
  mutable WorkerChoice choice_;
  AdmissionQueue queue_;
  SelectionCache cache_;
  std::unordered_map<Ticket, Waiter> waiters_;
  // Of calls that joined a waiter; the first one's is the queue's.
  struct JoinedDeadline {
    SteadyTime at;
    Ticket ticket;
    std::uint64_t party;
    auto operator<=>(const JoinedDeadline&) const = default;
  };
  std::set<JoinedDeadline> joined_deadlines_;
  std::unordered_map<std::string, Ticket, TextHash, std::equal_to<>> waiting_ids_;
  CandidateSet candidates_;  // scratch
  SelectionStats stats_;
  Ticket next_ticket_ = 1;
  std::uint64_t next_party_ = 1;
  bool stopped_ = false;
};

}  // namespace handoff::epp
