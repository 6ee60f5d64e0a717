#include "epp/selection/selection_service.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "epp/selection/request_preparation.hpp"

namespace handoff::epp {
namespace {

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += (text.empty() ? "" : "; ") + line;
  return text;
}

// UUID version 4, as upstream makes its ids.
std::string uuid_from(std::uint64_t high, std::uint64_t low) {
  high = (high & ~0xf000ULL) | 0x4000ULL;
  low = (low & ~(0x3ULL << 62)) | (0x2ULL << 62);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(36);
  for (int i = 0; i < 32; ++i) {
    if (i == 8 || i == 12 || i == 16 || i == 20) text.push_back('-');
    const std::uint64_t half = i < 16 ? high : low;
    text.push_back(kDigits[(half >> (60 - 4 * (i % 16))) & 0xf]);
  }
  return text;
}

}  // namespace

SelectionEnvironment system_environment() {
  SelectionEnvironment environment;
  environment.clock = [] { return std::chrono::steady_clock::now(); };
  environment.random = [] {
    thread_local std::mt19937_64 generator = [] {
      std::random_device device;
      std::seed_seq seed{device(), device(), device(), device()};
      return std::mt19937_64(seed);
    }();
    return generator();
  };
  return environment;
}

bool PendingSelection::cancel() {
  if (place_.ticket == 0) return false;
  const auto partition = partition_.lock();
  return partition != nullptr && partition->cancel(place_);
}

Result<std::unique_ptr<SelectionService>> SelectionService::create(SelectorConfig config,
                                                                   SelectionEnvironment environment) {
  auto problems = config.validate();
  if (!environment.clock || !environment.random)
    problems.emplace_back("a clock and a random source are needed");
  if (!problems.empty()) {
    return {SelectionErrorCode::kBadRequest, "invalid selector configuration: " + join_lines(problems)};
  }
  return std::unique_ptr<SelectionService>(new SelectionService(std::move(config), std::move(environment)));
}

SelectionService::SelectionService(SelectorConfig config, SelectionEnvironment environment)
    : config_(std::move(config)),
      environment_(std::move(environment)),
      directory_(config_.limits.max_retired_ids, config_.limits.retired_id_ttl),
      catalog_(config_) {}

SelectionService::~SelectionService() {
  shutdown();
}

std::shared_ptr<Partition> SelectionService::partition_of(std::string_view model,
                                                          std::string_view group) const {
  const std::shared_lock lock(partitions_mutex_);
  const auto found = partitions_.find(KeyLess::View{model, group});
  return found == partitions_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Partition>> SelectionService::all_partitions() const {
  std::vector<std::shared_ptr<Partition>> all;
  const std::shared_lock lock(partitions_mutex_);
  all.reserve(partitions_.size());
  for (const auto& [key, partition] : partitions_) all.push_back(partition);
  return all;
}

// Catalog.

Result<WorkerRecord> SelectionService::upsert_worker(WorkerSpec spec,
                                                     std::optional<WorkerCondition> condition) {
  const AnswerHold hold;
  const std::lock_guard lock(catalog_mutex_);
  return upsert_locked(std::move(spec), condition);
}

std::vector<Result<WorkerRecord>> SelectionService::upsert_workers(std::vector<WorkerSpec> specs) {
  std::vector<Result<WorkerRecord>> records;
  records.reserve(specs.size());
  const AnswerHold hold;
  const std::lock_guard lock(catalog_mutex_);
  for (WorkerSpec& spec : specs) records.push_back(upsert_locked(std::move(spec), std::nullopt));
  return records;
}

Result<WorkerRecord> SelectionService::patch_worker(WorkerId id, const WorkerPatch& patch) {
  const AnswerHold hold;
  const std::lock_guard lock(catalog_mutex_);
  const CatalogEntry* entry = catalog_.find(id);
  if (entry == nullptr) return {SelectionErrorCode::kNotFound, "unknown worker"};
  WorkerSpec spec = entry->record->spec;
  patch.apply_to(spec);
  return upsert_locked(std::move(spec), std::nullopt);
}

Result<WorkerRecord> SelectionService::upsert_locked(WorkerSpec spec, std::optional<WorkerCondition> wanted) {
  if (stopped_) return {SelectionErrorCode::kShuttingDown, "the selection service is shutting down"};
  const CatalogEntry* known = catalog_.find(spec.worker_id);
  const auto condition = wanted.value_or(known == nullptr ? WorkerCondition::kServing : known->condition);
  auto record = catalog_.describe(std::move(spec), condition);
  if (!record) return record;
  if (!catalog_.has_room_for(record->spec)) {
    return {SelectionErrorCode::kBadRequest, "the catalog has no room for another worker or rank"};
  }
  CatalogEntry& entry = catalog_.put(*record, condition);
  place(entry);
  return *entry.record;
}

Result<WorkerRecord> SelectionService::mark_worker(WorkerId id, WorkerCondition condition) {
  const AnswerHold hold;
  const std::lock_guard lock(catalog_mutex_);
  CatalogEntry* entry = catalog_.find(id);
  if (entry == nullptr) return {SelectionErrorCode::kNotFound, "unknown worker"};
  entry->condition = condition;
  describe_again(*entry);
  return *entry->record;
}

Result<WorkerRecord> SelectionService::delete_worker(WorkerId id) {
  const AnswerHold hold;
  const std::lock_guard lock(catalog_mutex_);
  CatalogEntry* entry = catalog_.find(id);
  if (entry == nullptr) return {SelectionErrorCode::kNotFound, "unknown worker"};
  const bool ended = leave_partition(*entry);
  WorkerRecord last = *entry->record;
  last.lifecycle = WorkerLifecycle::kUnschedulable;
  catalog_.erase(id);
  if (ended) retry_reconciliation();
  return last;
}

void SelectionService::describe_again(CatalogEntry& entry) {
  auto record = catalog_.describe(entry.record->spec, entry.condition);
  if (!record) return;  // it was in bounds before, and still is
  catalog_.replace_record(entry, std::make_shared<const WorkerRecord>(std::move(*record)));
  place(entry);
}

void SelectionService::place(CatalogEntry& entry) {
  const WorkerSpec& spec = entry.record->spec;
  const bool complete = entry.record->lifecycle != WorkerLifecycle::kIncomplete;
  bool ended = false;
  if (const auto& current = entry.partition) {
    const bool moved = current->key() != PartitionKey{spec.model_name, spec.routing_group};
    const bool hashes_differently =
        complete && (current->block_size() != spec.block_size || current->is_eagle() != spec.is_eagle);
    if (moved || hashes_differently) ended = leave_partition(entry);
  }
  if (complete && entry.partition == nullptr) {
    std::string problem;
    entry.partition = partition_for(spec, problem);
    if (entry.partition == nullptr) {
      WorkerRecord record = *entry.record;
      record.lifecycle = WorkerLifecycle::kIncomplete;
      record.not_schedulable_reasons.push_back("reconciliation failed: " + problem);
      catalog_.replace_record(entry, std::make_shared<const WorkerRecord>(std::move(record)));
    }
  }
  if (entry.partition != nullptr) entry.partition->attach(entry.record);
  if (ended) retry_reconciliation();
}

// True: it was the partition's last worker, and the partition is gone.
bool SelectionService::leave_partition(CatalogEntry& entry) {
  if (entry.partition == nullptr) return false;
  const auto partition = std::exchange(entry.partition, nullptr);
  partition->detach(entry.record->spec.worker_id);
  if (partition->ranks() > 0) return false;
  const SelectionStats last = partition->stats();
  const std::unique_lock lock(partitions_mutex_);
  past_stats_ += last;
  partitions_.erase(partition->key());
  return true;
}

std::shared_ptr<Partition> SelectionService::partition_for(const WorkerSpec& spec, std::string& problem) {
  PartitionKey key{spec.model_name, spec.routing_group};
  if (auto existing = partition_of(key.model_name, key.routing_group)) {
    if (existing->block_size() != spec.block_size) {
      problem = "block_size " + std::to_string(spec.block_size) + " differs from the partition's " +
                std::to_string(existing->block_size());
      return nullptr;
    }
    if (existing->is_eagle() != spec.is_eagle) {
      problem = "is_eagle differs from the partition's";
      return nullptr;
    }
    return existing;
  }
  std::unique_ptr<OverlapSource> overlaps;
  if (environment_.overlap_source && config_.options.use_overlap) {
    overlaps = environment_.overlap_source(key, spec.block_size, spec.is_eagle);
  }
  auto created =
      std::make_shared<Partition>(key, spec.block_size, spec.is_eagle,
                                  Partition::Deps{config_, directory_, environment_.clock,
                                                  environment_.prefill_duration, std::move(overlaps)});
  const std::unique_lock lock(partitions_mutex_);
  if (partitions_.size() >= config_.limits.max_partitions) {
    problem = "too many partitions";
    return nullptr;
  }
  partitions_.emplace(std::move(key), created);
  return created;
}

// A partition is gone: workers that did not fit it, or had no room for one of their own, may fit now. It may
// have been followed by one for the other kind of workers already.
void SelectionService::retry_reconciliation() {
  for (const auto& [id, known] : catalog_.entries()) {
    if (known.partition == nullptr) describe_again(*catalog_.find(id));
  }
}

std::optional<WorkerRecord> SelectionService::find_worker(WorkerId id) const {
  const std::lock_guard lock(catalog_mutex_);
  const CatalogEntry* entry = catalog_.find(id);
  if (entry == nullptr) return std::nullopt;
  return *entry->record;
}

std::vector<WorkerRecord> SelectionService::list_workers(std::optional<std::string_view> model,
                                                         std::optional<std::string_view> group) const {
  std::vector<WorkerRecord> records;
  const std::lock_guard lock(catalog_mutex_);
  for (const auto& [id, entry] : catalog_.entries()) {
    const WorkerSpec& spec = entry.record->spec;
    if ((model && spec.model_name != *model) || (group && spec.routing_group != *group)) continue;
    records.push_back(*entry.record);
  }
  return records;
}

Readiness SelectionService::ready() const {
  Readiness answer;
  const std::lock_guard lock(catalog_mutex_);
  for (const auto& [id, entry] : catalog_.entries()) {
    const WorkerRecord& record = *entry.record;
    if (record.lifecycle == WorkerLifecycle::kSchedulable) ++answer.schedulable_workers;
    answer.workers.push_back({id, record.lifecycle, record.not_schedulable_reasons});
  }
  answer.ready = !stopped_ && answer.schedulable_workers > 0;
  return answer;
}

RoutingConstraints SelectionService::transfer_constraints(WorkerId prefill_worker) const {
  RoutingConstraints constraints;
  const auto record = find_worker(prefill_worker);
  if (!record || !record->spec.kv_transfer) return constraints;
  const KvTransferRule& rule = *record->spec.kv_transfer;
  const auto domain = record->spec.topology_domains.find(rule.domain);
  if (domain == record->spec.topology_domains.end()) return constraints;
  const std::string taint = topology_taint(domain->first, domain->second);
  if (rule.enforcement == TransferEnforcement::kRequired) {
    constraints.required_taints.push_back(taint);
  } else {
    constraints.preferred_taints.emplace(taint, rule.preferred_weight);
  }
  return constraints;
}

// Selection.

std::string SelectionService::make_id() {
  return uuid_from(environment_.random(), environment_.random());
}

Result<PreparedRequest> SelectionService::prepare_for(SelectRequest&& request, bool book,
                                                      const std::shared_ptr<Partition>& partition) const {
  auto prepared = prepare(std::move(request), book, partition->key(), partition->block_size(),
                          partition->is_eagle(), config_);
  if (!prepared) return prepared;
  if (environment_.lora_workers && !prepared->lora_name.empty() && !prepared->request.pinned_worker) {
    prepared->adapter_workers = environment_.lora_workers(partition->key(), prepared->lora_name);
    if (auto& workers = prepared->adapter_workers) std::sort(workers->begin(), workers->end());
  }
  partition->match(*prepared, environment_.clock());
  return prepared;
}

PendingSelection SelectionService::start(SelectRequest&& request, bool book, SelectionCallback done) {
  const auto refuse = [&](SelectionError error) {
    AnswerBatch answers;
    answers.add(std::move(done), Result<Selection>(std::move(error)));
    answers.give();
    return PendingSelection();
  };
  if (stopped_) return refuse({SelectionErrorCode::kShuttingDown, "the selection service is shutting down"});
  if (auto error = validate(request, config_.limits)) return refuse(std::move(*error));
  const auto partition = partition_of(request.model_name, request.routing_group);
  if (partition == nullptr) {
    return refuse({SelectionErrorCode::kNotReady, "no schedulable worker for this model and group"});
  }
  const bool made_up = request.selection_id.empty();
  if (made_up) request.selection_id = make_id();
  auto prepared = prepare_for(std::move(request), book, partition);
  if (!prepared) return refuse(prepared.error());
  prepared->is_named = !made_up;
  const auto place = partition->submit(std::move(*prepared), std::move(done));
  return place ? PendingSelection(partition, *place) : PendingSelection();
}

PendingSelection SelectionService::select(SelectRequest request, SelectionCallback done) {
  return start(std::move(request), false, std::move(done));
}

PendingSelection SelectionService::select_and_reserve(SelectRequest request, SelectionCallback done) {
  request.advisory = false;  // a booking is never only advice
  return start(std::move(request), true, std::move(done));
}

Result<Selection> SelectionService::create_reservation(ReservationRequest request) {
  if (stopped_) return {SelectionErrorCode::kShuttingDown, "the selection service is shutting down"};
  if (auto error = validate(request, config_.limits)) return std::move(*error);
  const auto partition = partition_of(request.model_name, request.routing_group);
  if (partition == nullptr) return {SelectionErrorCode::kNotFound, "no worker for this model and group"};

  if (!request.worker) return partition->reserve({}, request);
  SelectRequest select;
  select.selection_id = request.selection_id;
  select.prompt = std::move(request.prompt);
  select.expected_output_tokens = request.expected_output_tokens;
  select.overrides.track_prefill_tokens = request.track_prefill_tokens;
  if (request.effective_prefill_tokens && !request.track_prefill_tokens) {
    select.overrides.track_prefill_tokens = true;
  }
  auto prepared = prepare(std::move(select), true, partition->key(), partition->block_size(),
                          partition->is_eagle(), config_);
  if (!prepared) return prepared.take_error();
  if (request.effective_prefill_tokens.value_or(0) > prepared->isl_tokens) {
    return {SelectionErrorCode::kBadRequest, "effective_prefill_tokens is greater than isl_tokens"};
  }
  return partition->reserve(std::move(*prepared), request);
}

// Lifecycle.

std::optional<SelectionError> SelectionService::check(ReservationRef reservation) const {
  if (!reservation.id.empty() && reservation.id.size() <= config_.limits.max_id_bytes) return std::nullopt;
  return SelectionError{SelectionErrorCode::kBadRequest, "malformed reservation id"};
}

template <typename Apply>
Result<LifecycleOutcome> SelectionService::on_reservation(ReservationRef reservation,
                                                          const EarlyLifecycle& call, Apply apply) {
  if (auto error = check(reservation)) return std::move(*error);
  bool finished = true;
  // Who names an attempt has seen its booking: there is nothing to remember for later.
  const auto partition = reservation.attempt != 0 ? directory_.find(reservation.id)
                                                  : directory_.find_or_remember(
                                                        reservation.id, call, environment_.clock(), finished);
  if (partition != nullptr) return apply(*partition);
  return finished ? LifecycleOutcome::kAlreadyDone : LifecycleOutcome::kRemembered;
}

Result<LifecycleOutcome> SelectionService::prefill_complete(ReservationRef reservation) {
  return on_reservation(reservation, {.prefill_complete = true}, [&](Partition& partition) {
    return partition.prefill_complete(reservation.id, reservation.attempt);
  });
}

Result<LifecycleOutcome> SelectionService::output_progress(ReservationRef reservation,
                                                           std::uint64_t output_tokens) {
  if (output_tokens > config_.limits.max_prompt_tokens) {
    return {SelectionErrorCode::kBadRequest, "more output tokens than any context holds"};
  }
  return on_reservation(reservation, {.output_tokens = output_tokens}, [&](Partition& partition) {
    return partition.report_output(reservation.id, reservation.attempt, output_tokens);
  });
}

Result<LifecycleOutcome> SelectionService::add_output_block(ReservationRef reservation,
                                                            std::optional<double> decay_fraction) {
  if (decay_fraction && !(*decay_fraction >= 0.0 && *decay_fraction <= 1.0)) {
    return {SelectionErrorCode::kBadRequest, "decay_fraction must be in [0, 1]"};
  }
  const EarlyLifecycle call{.output_blocks = 1, .decay_fraction = decay_fraction};
  return on_reservation(reservation, call, [&](Partition& partition) {
    return partition.add_output_block(reservation.id, reservation.attempt, decay_fraction);
  });
}

Result<LifecycleOutcome> SelectionService::renew_reservation(ReservationRef reservation) {
  if (auto error = check(reservation)) return std::move(*error);
  const auto partition = directory_.find(reservation.id);
  if (partition == nullptr) return LifecycleOutcome::kAlreadyDone;
  return partition->renew(reservation.id, reservation.attempt);
}

Result<LifecycleOutcome> SelectionService::free_reservation(ReservationRef reservation) {
  if (auto error = check(reservation)) return std::move(*error);
  if (reservation.attempt != 0) {
    const auto partition = directory_.find(reservation.id);
    if (partition == nullptr) return LifecycleOutcome::kAlreadyDone;
    return partition->free(reservation.id, reservation.attempt);
  }
  // Between the look and the call a selection for the id may fail and give it back. The free may not be lost
  // with it, so it looks again; who holds the id by then has it for good.
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    bool finished = true;
    const auto partition = directory_.find_or_finish(reservation.id, environment_.clock(), finished);
    if (partition == nullptr)
      return finished ? LifecycleOutcome::kAlreadyDone : LifecycleOutcome::kRemembered;
    const auto outcome = partition->free(reservation.id, 0);
    if (outcome != LifecycleOutcome::kAlreadyDone) return outcome;
  }
  return LifecycleOutcome::kAlreadyDone;
}

// Questions.

std::vector<PartitionLoads> SelectionService::loads(std::optional<std::string_view> model,
                                                    std::optional<std::string_view> group) const {
  std::vector<PartitionLoads> answer;
  for (const auto& partition : all_partitions()) {
    const PartitionKey& key = partition->key();
    if ((model && key.model_name != *model) || (group && key.routing_group != *group)) continue;
    answer.push_back(partition->loads());
  }
  return answer;
}

Result<PreparedRequest> SelectionService::prepare_question(SelectRequest request,
                                                           std::shared_ptr<Partition>& partition) const {
  if (auto error = validate(request, config_.limits)) return std::move(*error);
  partition = partition_of(request.model_name, request.routing_group);
  if (partition == nullptr)
    return {SelectionErrorCode::kNotReady, "no schedulable worker for this model and group"};
  return prepare_for(std::move(request), false, partition);
}

Result<std::vector<PotentialLoad>> SelectionService::potential_loads(SelectRequest request) const {
  std::shared_ptr<Partition> partition;
  auto prepared = prepare_question(std::move(request), partition);
  if (!prepared) return prepared.take_error();
  return partition->potential_loads(*prepared);
}

Result<OverlapScoresAnswer> SelectionService::overlap_scores(SelectRequest request) const {
  std::shared_ptr<Partition> partition;
  auto prepared = prepare_question(std::move(request), partition);
  if (!prepared) return prepared.take_error();
  return partition->overlap_scores(*prepared);
}

SelectionStats SelectionService::stats() const {
  SelectionStats total;
  {
    const std::shared_lock lock(partitions_mutex_);
    total = past_stats_;
  }
  for (const auto& partition : all_partitions()) total += partition->stats();
  return total;
}

std::vector<std::string> SelectionService::kv_problems() const {
  std::vector<std::string> all;
  for (const auto& partition : all_partitions()) {
    for (auto& problem : partition->kv_problems()) all.push_back(std::move(problem));
  }
  return all;
}

std::vector<KvStatus> SelectionService::kv_status() const {
  std::vector<KvStatus> all;
  for (const auto& partition : all_partitions()) all.push_back(partition->kv_status());
  return all;
}

std::optional<SteadyTime> SelectionService::maintain() {
  std::optional<SteadyTime> next;
  for (const auto& partition : all_partitions()) {
    const auto due = partition->maintain();
    if (due && (!next || *due < *next)) next = due;
  }
  return next;
}

void SelectionService::shutdown() {
  stopped_ = true;
  for (const auto& partition : all_partitions()) partition->stop();
}

}  // namespace handoff::epp
