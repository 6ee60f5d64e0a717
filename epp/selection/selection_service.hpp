#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "epp/selection/overlap_source.hpp"
#include "epp/selection/partition.hpp"
#include "epp/selection/select_request.hpp"
#include "epp/selection/worker_catalog.hpp"

namespace handoff::epp {

// What the service does not decide itself. All of it is called from any thread.
struct SelectionEnvironment {
  std::function<SteadyTime()> clock;
  std::function<std::uint64_t()> random;       // for made-up ids; choices repeat and use none
  OverlapSourceFactory overlap_source;         // null: selection by load alone
  PrefillDurationModel prefill_duration = {};  // null: pending prefill does not melt away by itself
  // Workers that have a LoRA adapter, in any order: only they get its requests, apart from pinned ones.
  // nullopt: any worker may take it (it can load the adapter, or nobody knows). Null: never asked.
  std::function<std::optional<std::vector<WorkerId>>(const PartitionKey& partition,
                                                     std::string_view lora_name)>
      lora_workers = {};
};

// The clock and randomness of a program. It leaves the KV view to the caller.
SelectionEnvironment system_environment();

// A waiting selection, for its caller. Dropping it lets the selection go on.
class PendingSelection {
 public:
  PendingSelection() = default;
  PendingSelection(std::weak_ptr<Partition> partition, Partition::Waiting place)
      : partition_(std::move(partition)), place_(place) {}

  // False: it was answered before the call that returned this handle returned.
  explicit operator bool() const { return place_.ticket != 0; }

  // Takes the request out of the queue at once; its callback gets kCancelled before this returns (unless this
  // is called from inside another answer: then right after that). False: the answer was or is being given
  // otherwise, and a booking in it is the caller's to free.
  bool cancel();

 private:
  std::weak_ptr<Partition> partition_;
  Partition::Waiting place_;
};

// Names a booking. `attempt` 0 means whatever is booked under the id; else only that very booking.
struct ReservationRef {
  std::string_view id;
  std::uint64_t attempt = 0;
};

struct WorkerReadiness {
  WorkerId worker_id = 0;
  WorkerLifecycle lifecycle = WorkerLifecycle::kIncomplete;
  std::vector<std::string> not_schedulable_reasons;
};

struct Readiness {
  bool ready = false;  // at least one schedulable worker, and not shut down
  std::size_t schedulable_workers = 0;
  std::vector<WorkerReadiness> workers;  // by id
};

// Chooses workers for LLM requests and books their load: one selector for one role (aggregated, prefill or
// decode). A plain library: no network of its own, no threads, no timers; the host calls maintain() about
// once a second, and sooner when it says so.
//
// Threads: every method from any thread. No method blocks on a request: waiting is a callback. Callbacks run
// without locks held, and may call the service. End: shutdown(), or destruction, which answers whoever waits;
// no call may run during destruction. Leases and handles may outlive it.
class SelectionService {
 public:
  // An error text lists every problem of the configuration.
  static Result<std::unique_ptr<SelectionService>> create(SelectorConfig config,
                                                          SelectionEnvironment environment);
  ~SelectionService();
  SelectionService(const SelectionService&) = delete;
  SelectionService& operator=(const SelectionService&) = delete;

  // Catalog. A worker that cannot be scheduled is no error: its record says why. Without a condition a known
  // worker keeps the one it has, and a new one serves at once: whoever waits may be sent to it before this
  // returns.
  Result<WorkerRecord> upsert_worker(WorkerSpec spec,
                                     std::optional<WorkerCondition> condition = std::nullopt);
  // Answers by position; one that fails does not keep the others back.
  std::vector<Result<WorkerRecord>> upsert_workers(std::vector<WorkerSpec> specs);
  // Changes the supplied fields only.
  Result<WorkerRecord> patch_worker(WorkerId id, const WorkerPatch& patch);
  // Draining or unavailable workers get no new requests and keep their bookings.
  Result<WorkerRecord> mark_worker(WorkerId id, WorkerCondition condition);
  // Frees everything booked on it. Returns the last record.
  Result<WorkerRecord> delete_worker(WorkerId id);
  std::optional<WorkerRecord> find_worker(WorkerId id) const;
  // By id; of one model or routing group where one is named.
  std::vector<WorkerRecord> list_workers(std::optional<std::string_view> model = std::nullopt,
                                         std::optional<std::string_view> group = std::nullopt) const;
  Readiness ready() const;
  // What the decode selection has to ask for, so that this prefill worker can reach the decode worker.
  RoutingConstraints transfer_constraints(WorkerId prefill_worker) const;

  // Chooses without booking. With a selection_id of the caller's, the choice is remembered for a
  // create_reservation() with nothing but that id.
  PendingSelection select(SelectRequest request, SelectionCallback done);
  // Chooses and books in one step. The same id again is the same booking.
  PendingSelection select_and_reserve(SelectRequest request, SelectionCallback done);
  // Books what was chosen elsewhere, or by an earlier select().
  Result<Selection> create_reservation(ReservationRequest request);

  // Lifecycle of a booking. Order and repetition do not matter: what comes before the booking is remembered,
  // what comes after the free changes nothing. Errors: malformed arguments only.
  Result<LifecycleOutcome> prefill_complete(ReservationRef reservation);
  // Cumulative output tokens; also renews.
  Result<LifecycleOutcome> output_progress(ReservationRef reservation, std::uint64_t output_tokens);
  Result<LifecycleOutcome> add_output_block(ReservationRef reservation, std::optional<double> decay_fraction);
  Result<LifecycleOutcome> renew_reservation(ReservationRef reservation);
  Result<LifecycleOutcome> free_reservation(ReservationRef reservation);

  std::vector<PartitionLoads> loads(std::optional<std::string_view> model = std::nullopt,
                                    std::optional<std::string_view> group = std::nullopt) const;
  Result<std::vector<PotentialLoad>> potential_loads(SelectRequest request) const;
  Result<OverlapScoresAnswer> overlap_scores(SelectRequest request) const;
  SelectionStats stats() const;
  // Event subscriptions that failed, one line each.
  std::vector<std::string> kv_problems() const;
  // Index and event counters of every partition, for metrics.
  std::vector<KvStatus> kv_status() const;
  const SelectorConfig& config() const { return config_; }

  // Housekeeping; returns when a waiter is due next.
  std::optional<SteadyTime> maintain();
  // Answers all who wait with kShuttingDown, and every later selection.
  void shutdown();

 private:
  SelectionService(SelectorConfig config, SelectionEnvironment environment);

  PendingSelection start(SelectRequest&& request, bool book, SelectionCallback done);
  Result<PreparedRequest> prepare_for(SelectRequest&& request, bool book,
                                      const std::shared_ptr<Partition>& partition) const;
  Result<PreparedRequest> prepare_question(SelectRequest request,
                                           std::shared_ptr<Partition>& partition) const;
  std::shared_ptr<Partition> partition_of(std::string_view model, std::string_view group) const;
  std::vector<std::shared_ptr<Partition>> all_partitions() const;
  std::string make_id();

  // Under the catalog lock.
  Result<WorkerRecord> upsert_locked(WorkerSpec spec, std::optional<WorkerCondition> wanted);
  void place(CatalogEntry& entry);
  bool leave_partition(CatalogEntry& entry);
  std::shared_ptr<Partition> partition_for(const WorkerSpec& spec, std::string& problem);
  void retry_reconciliation();
  void describe_again(CatalogEntry& entry);

  std::optional<SelectionError> check(ReservationRef reservation) const;
  template <typename Apply>
  Result<LifecycleOutcome> on_reservation(ReservationRef reservation, const EarlyLifecycle& call,
                                          Apply apply);

  struct KeyLess {
    using is_transparent = void;
    using View = std::pair<std::string_view, std::string_view>;
    static View view(const PartitionKey& key) { return {key.model_name, key.routing_group}; }
    static View view(const View& key) { return key; }
    template <typename Left, typename Right>
    bool operator()(const Left& left, const Right& right) const {
      return view(left) < view(right);
    }
  };

  const SelectorConfig config_;
  const SelectionEnvironment environment_;
  ReservationDirectory directory_;
  std::atomic<bool> stopped_{false};

  mutable std::mutex catalog_mutex_;
  WorkerCatalog catalog_;

  // Written under the catalog lock, too. Partitions refer to this service's configuration and directory.
  mutable std::shared_mutex partitions_mutex_;
  std::map<PartitionKey, std::shared_ptr<Partition>, KeyLess> partitions_;
  SelectionStats past_stats_;  // of partitions that are gone
};

}  // namespace handoff::epp
