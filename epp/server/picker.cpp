#include "epp/server/picker.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "epp/policy_file/policy_file.hpp"
#include "epp/selection/index_overlap_source.hpp"
#include "epp/selection/kv_feed_subscriptions.hpp"

namespace handoff::epp {
namespace {

constexpr std::size_t kPlansInReport = 1000;

PolicyProfile policy_profile(const EppConfig& config) {
  if (config.router.policy_path.empty()) return {};
  auto read = read_policy_file(config.router.policy_path);
  if (const auto* error = std::get_if<PolicyFileError>(&read)) {
    throw std::runtime_error("DYN_ROUTER_POLICY_CONFIG: " + error->text);
  }
  auto profile = std::get<PolicyProfile>(std::move(read));
  // Here, where the setting is known, and not once for each selector.
  SelectorConfig alone;
  alone.policy = profile;
  std::string problems;
  for (const std::string& problem : alone.validate()) problems += (problems.empty() ? "" : "; ") + problem;
  if (!problems.empty()) throw std::runtime_error("DYN_ROUTER_POLICY_CONFIG: " + problems);
  const PlanningConfig& planning = config.planning;
  const bool by_role = planning.prefill_max_num_batched_tokens && planning.decode_max_num_batched_tokens;
  if (profile.queues() && !planning.max_num_batched_tokens && !by_role) {
    throw std::runtime_error(
        "DYN_ROUTER_POLICY_CONFIG: its classes queue, which needs "
        "DYN_EPP_MAX_NUM_BATCHED_TOKENS");
  }
  return profile;
}

SelectorConfig selector_config(const EppConfig& config, SelectorRole role) {
  const RouterSettings& router = config.router;
  SelectorConfig selector = SelectorConfig::for_role(role);
  selector.cost = router.cost;
  selector.use_kv_events = config.planning.use_kv_events;
  selector.overload = router.overload;
  selector.decode_busy_threshold = router.decode_busy_threshold;
  selector.policy = policy_profile(config);
  // What a role does not count stays uncounted.
  selector.options.track_blocks = selector.options.track_blocks && router.track_active_blocks;
  selector.options.track_prefill_tokens =
      selector.options.track_prefill_tokens && router.track_prefill_tokens;
  selector.options.assume_kv_reuse = selector.options.assume_kv_reuse && router.assume_kv_reuse;
  selector.active_sequence_stride = router.active_sequence_stride;
  selector.overlap_refresh_after = std::chrono::seconds(router.overlap_refresh_after_secs);
  selector.track_output_blocks = router.track_output_blocks;
  selector.router_queue_threshold = router.queue_threshold;
  selector.router_queue_policy = router.queue_policy;
  selector.router_ttl = std::chrono::seconds(router.ttl_secs);
  selector.active_request_expiry = std::chrono::seconds(router.active_request_expiry_secs);
  // A session belongs where its answers are made.
  if (role != SelectorRole::kPrefill) {
    selector.affinity.mode = router.affinity;
    selector.affinity.ttl = std::chrono::seconds(router.affinity_ttl_secs);
  }
  // Whether a prompt is short for a decode worker depends on what that worker has cached.
  if (role == SelectorRole::kDecode && config.planning.conditional_disaggregation) {
    selector.options.use_overlap = true;
  }
  return selector;
}

std::unique_ptr<SelectionService> make_selector(const EppConfig& config, SelectorRole role) {
  const SelectorConfig selector = selector_config(config, role);
  SelectionEnvironment environment = system_environment();
  if (selector.options.use_overlap) {
    environment.overlap_source = index_overlap_sources(
        selector, BlockIndexOptions{}, kv_feed_subscriptions(config.router.event_threads, environment.clock));
  }
  auto service = SelectionService::create(selector, std::move(environment));
  if (!service)
    throw std::runtime_error(std::string(to_string(role)) + " selector: " + service.error().message);
  return std::move(service).value();
}

nlohmann::json selector_report(const SelectionService& service, const WorkerView& view) {
  nlohmann::json workers = nlohmann::json::array();
  for (const auto& partition : service.loads()) {
    for (const WorkerLoad& load : partition.loads) {
      const auto* const known = view.find(load.rank.worker);
      workers.push_back({{"name", known == nullptr ? "" : known->name},
                         {"id", load.rank.worker},
                         {"rank", load.rank.rank},
                         {"active_prefill_tokens", load.active_prefill_tokens},
                         {"active_decode_blocks", load.active_decode_blocks},
                         {"active_requests", load.active_requests}});
    }
  }
  const SelectionStats stats = service.stats();
  const Readiness readiness = service.ready();
  return {{"role", to_string(service.config().role)},
          {"schedulable_workers", readiness.schedulable_workers},
          {"workers", workers},
          {"live_reservations", stats.live_reservations},
          {"waiting", stats.waiting},
          {"bookings", stats.bookings},
          {"freed", stats.freed},
          {"orphans_expired", stats.orphans_expired},
          {"tracked_blocks", stats.tracked_blocks},
          {"kv_problems", service.kv_problems()}};
}

}  // namespace

Picker::Picker(const EppConfig& config, Tokenizer* tokenizer) : config_(config) {
  const bool paired = config.topology == TopologyMode::kDisaggregated;
  if (paired) prefill_ = make_selector(config, SelectorRole::kPrefill);
  destination_ = make_selector(config, paired ? SelectorRole::kDecode : SelectorRole::kAggregated);
  const Selectors selectors{.prefill = prefill_.get(), .destination = destination_.get()};
  directory_ = std::make_unique<WorkerDirectory>(config.planning, selectors);

  std::vector<SelectionService*> services{destination_.get()};
  if (paired) services.push_back(prefill_.get());
  housekeeping_ = std::make_unique<Housekeeping>(std::move(services), ledger_);

  const SelectionEnvironment environment = system_environment();
  planner_ = std::make_unique<RequestPlanner>(
      config.planning,
      RequestPlanner::Parts{.selectors = selectors,
                            .directory = directory_.get(),
                            .ledger = &ledger_,
                            .tokenizer = tokenizer,
                            .clock = environment.clock,
                            .random = environment.random,
                            .wake_by = [this](SteadyTime when) { housekeeping_->wake_by(when); }});
  life_ = {.config = &config.planning,
           .planner = planner_.get(),
           .directory = directory_.get(),
           .rates = &rates_,
           .housekeeping = housekeeping_.get(),
           .clock = environment.clock};
}

Picker::~Picker() {
  destination_->shutdown();
  if (prefill_) prefill_->shutdown();
  // Its thread may hold a run of the planner's.
  housekeeping_.reset();
}

std::string Picker::report() const {
  const auto view = directory_->view();
  nlohmann::json selectors = nlohmann::json::array();
  if (prefill_) selectors.push_back(selector_report(*prefill_, *view));
  selectors.push_back(selector_report(*destination_, *view));
  nlohmann::json plans = nlohmann::json::array();
  for (const auto& line : ledger_.list(kPlansInReport)) {
    plans.push_back({{"id", line.id}, {"state", to_string(line.state)}});
  }
  const PlanCounts counts = ledger_.counts();
  const PlannerCounts planner = planner_->counts();
  const nlohmann::json report = {
      {"ready", ready()},
      {"selectors", selectors},
      {"excluded", directory_->excluded()},
      {"plans", plans},
      {"open_plans", ledger_.open_plans()},
      {"planning", planner_->in_flight()},
      {"buffered_bytes",
       config_.limits.buffered_bytes != nullptr ? config_.limits.buffered_bytes->load() : 0},
      {"counts",
       {{"requests", planner.requests},
        {"refused_inflight", planner.refused_inflight},
        {"tokenizer_failures", planner.tokenizer_failures},
        {"decode_only", planner.decode_only},
        {"rebooked", planner.rebooked},
        {"published", counts.published},
        {"compensated", counts.compensated},
        {"moved", counts.moved}}}};
  return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace handoff::epp
