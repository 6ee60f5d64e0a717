#include "epp/planning/worker_directory.hpp"

#include <utility>

#include "shared/telemetry/log.hpp"

namespace handoff::epp {
namespace {

using telemetry::Level;
using telemetry::LogLine;

// Some milliseconds of work each.
constexpr std::size_t kMostChangesPerTurn = 256;
constexpr std::size_t kMostArrivalsPerTurn = 64;

}  // namespace

WorkerDirectory::WorkerDirectory(const PlanningConfig& config, Selectors selectors)
    : config_(config), selectors_(selectors), view_(std::make_shared<const WorkerView>()) {}

WorkerDirectory::~WorkerDirectory() = default;

void WorkerDirectory::on_endpoint(const Endpoint& endpoint) {
  const AnswerHold hold;
  const std::lock_guard lock(mutex_);
  Placed& placed = placed_[endpoint.name];
  SelectionService* const before = placed.service;
  const WorkerId id_before = placed.endpoint.worker_id;
  note_pending(endpoint.name, placed, std::exchange(placed.reason, {}));
  placed.endpoint = endpoint;
  placed.service = service_for(endpoint, placed.reason);
  // A changed role moves the worker to the other catalog; what is booked on it is no longer true.
  const bool moved = before != nullptr && (placed.service != before || id_before != endpoint.worker_id);
  if (moved) {
    (void)before->delete_worker(id_before);
    placed.is_in_selector = false;
    next_view_.erase(id_before);
  }
  show(placed);
}

void WorkerDirectory::note_pending(const std::string& name, const Placed& placed, std::string reason_before) {
  if (changes_.contains(name) || arrivals_.contains(name)) return;
  (placed.is_in_selector ? changes_ : arrivals_).emplace(name, std::move(reason_before));
}

void WorkerDirectory::on_endpoint_removed(std::string_view name) {
  const AnswerHold hold;
  const std::lock_guard lock(mutex_);
  const auto found = placed_.find(name);
  if (found == placed_.end()) return;
  const WorkerId id = found->second.endpoint.worker_id;
  if (found->second.service != nullptr) {
    (void)found->second.service->delete_worker(id);
    next_view_.erase(id);
    is_view_old_ = true;
  }
  LogLine(Level::info, "endpoint_removed").field("endpoint", name);
  placed_.erase(found);
}

bool WorkerDirectory::on_batch_end() {
  const AnswerHold hold;
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_view_old_, false)) publish();
  place_some(changes_, kMostChangesPerTurn);
  place_some(arrivals_, kMostArrivalsPerTurn);
  // One that its selector refused.
  if (std::exchange(is_view_old_, false)) publish();
  return !changes_.empty() || !arrivals_.empty();
}

void WorkerDirectory::on_synced(bool synced) {
  synced_.store(synced, std::memory_order_release);
}

std::vector<std::string> WorkerDirectory::excluded() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const auto& [name, placed] : placed_) {
    if (placed.service == nullptr) lines.push_back(name + ": " + placed.reason);
  }
  return lines;
}

SelectionService* WorkerDirectory::service_for(const Endpoint& endpoint, std::string& reason) const {
  if (!selectors_.is_paired()) return selectors_.destination;
  if (!endpoint.role) {
    reason = "role_label_missing";
    return nullptr;
  }
  return *endpoint.role == EndpointRole::kPrefill ? selectors_.prefill : selectors_.destination;
}

WorkerSpec WorkerDirectory::spec_of(const Endpoint& endpoint, bool is_prefill) const {
  WorkerSpec spec;
  spec.worker_id = endpoint.worker_id;
  spec.model_name = config_.model_name;
  spec.endpoint = socket_address(endpoint.address, endpoint.port);
  spec.block_size = config_.block_size;
  spec.data_parallel_size = endpoint.data_parallel_size;
  spec.stable_routing_id = endpoint.name;
  spec.total_kv_blocks = config_.total_kv_blocks;
  spec.is_eagle = config_.is_eagle;
  const bool paired = selectors_.is_paired();
  const auto& of_role =
      is_prefill ? config_.prefill_max_num_batched_tokens : config_.decode_max_num_batched_tokens;
  spec.max_num_batched_tokens = paired && of_role ? of_role : config_.max_num_batched_tokens;

  // A decode worker's cache only matters where a prompt may be left to it alone.
  const bool overlap_counts = !paired || is_prefill || config_.conditional_disaggregation;
  spec.kv_events = config_.use_kv_events && endpoint.kv_events && overlap_counts;
  if (!spec.kv_events) return spec;
  const std::string base = "tcp://";
  spec.kv_events_endpoint =
      base + socket_address(endpoint.address, endpoint.kv_event_port.value_or(config_.kv_event_port));
  const auto replay = endpoint.kv_replay_port ? endpoint.kv_replay_port : config_.kv_replay_port;
  if (replay) spec.replay_endpoint = base + socket_address(endpoint.address, *replay);
  return spec;
}

void WorkerDirectory::place_some(Pending& pending, std::size_t most) {
  for (; most > 0 && !pending.empty(); --most) {
    const auto next = pending.extract(pending.begin());
    const auto found = placed_.find(next.key());
    if (found == placed_.end()) continue;
    Placed& placed = found->second;
    if (placed.service != nullptr) place(placed);
    if (placed.service == nullptr && placed.reason != next.mapped()) {
      LogLine(Level::warn, "endpoint_excluded").field("endpoint", next.key()).field("reason", placed.reason);
    }
  }
}

void WorkerDirectory::place(Placed& placed) {
  const bool is_prefill = placed.service == selectors_.prefill;
  const auto condition = placed.endpoint.ready ? WorkerCondition::kServing : WorkerCondition::kUnavailable;
  const auto record = placed.service->upsert_worker(spec_of(placed.endpoint, is_prefill), condition);
  if (!record) {
    placed.service = nullptr;
    placed.reason = record.error().message;
    next_view_.erase(placed.endpoint.worker_id);
    is_view_old_ = true;
    return;
  }
  placed.is_in_selector = true;
  LogLine line(Level::info, "endpoint");
  line.field("endpoint", placed.endpoint.name)
      .field("address", record->spec.endpoint)
      .field("role", to_string(placed.service->config().role))
      .field("state", to_string(record->lifecycle));
  if (!placed.endpoint.not_ready_reason.empty()) line.field("reason", placed.endpoint.not_ready_reason);
  for (const auto& reason : record->not_schedulable_reasons) line.field("problem", reason);
}

void WorkerDirectory::show(const Placed& placed) {
  is_view_old_ = true;
  if (placed.service == nullptr) return;
  const Endpoint& endpoint = placed.endpoint;
  next_view_.put(endpoint.worker_id, {.name = endpoint.name,
                                      .address = endpoint.address,
                                      .port = endpoint.port,
                                      .is_prefill = placed.service == selectors_.prefill,
                                      .ready = endpoint.ready});
}

void WorkerDirectory::publish() {
  views_made_.fetch_add(1, std::memory_order_relaxed);
  auto view = std::make_shared<const WorkerView>(next_view_.share());
  std::atomic_store_explicit(&view_, std::move(view), std::memory_order_release);
}

}  // namespace handoff::epp
