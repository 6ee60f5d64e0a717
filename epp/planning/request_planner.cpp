#include "epp/planning/request_planner.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <span>
#include <utility>

#include "epp/ext_proc/routing_headers.hpp"
#include "epp/planning/endpoint_subset.hpp"
#include "epp/planning/prompt_blocks.hpp"
#include "epp/planning/refusals.hpp"
#include "shared/telemetry/log.hpp"

namespace handoff::epp {
namespace {

using telemetry::Level;
using telemetry::LogLine;

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::size_t kMostMetadataHeaders = 64;
// Workers that go away again and again are not chased without end.
constexpr int kMostRebookings = 3;
constexpr std::string_view kTenantSalt = "dynamo-cache-salt:";

// 64 bits in 13 characters: short enough for a string's own space, with the leg behind it.
std::string plan_id_from(std::uint64_t number) {
  constexpr char kDigits[] = "0123456789abcdefghjkmnpqrstvwxyz";
  std::string text(13, '0');
  for (std::size_t i = text.size(); i-- > 0; number >>= 5) text[i] = kDigits[number & 0x1f];
  return text;
}

void log_explanation(std::string_view plan_id, Leg leg, const Selection& selection) {
  if (!selection.explanation) return;
  for (const auto& candidate : selection.explanation->candidates) {
    LogLine(Level::debug, "candidate")
        .field("plan", plan_id)
        .field("leg", to_string(leg))
        .field("worker", candidate.rank.worker)
        .field("rank", candidate.rank.rank)
        .field("eligibility", to_string(candidate.eligibility))
        .field("cost", candidate.terms.cost)
        .field("cached_tokens", candidate.cached_tokens)
        .field("chosen", candidate.chosen);
  }
}

}  // namespace

// One request on its way to a plan. Steps follow each other; a step may end on another thread than it began
// on.
class RequestPlanner::Run final : public PlanningRun,
                                  public BookingListener,
                                  public std::enable_shared_from_this<Run> {
 public:
  Run(RequestPlanner& planner, ReceivedRequest&& request, std::shared_ptr<PlanListener>&& listener)
      : planner_(planner), request_(std::move(request)), listener_(std::move(listener)) {}
  ~Run() override { leave(); }

  void begin() {
    planner_.requests_.fetch_add(1, kRelaxed);
    holds_permit_ = true;
    if (planner_.in_flight_.fetch_add(1, kRelaxed) >= planner_.config_.max_inflight) {
      planner_.refused_inflight_.fetch_add(1, kRelaxed);
      refuse(EppError::overloaded);
      return;
    }
    facts_ = read_request_facts(request_.headers, request_.body.get(), !config().ignores_nvext);
    if (request_.observed && request_.body == nullptr) size_by_length(request_.headers, facts_);
    if (const auto refusal = find_fault()) {
      finish(*refusal);
      return;
    }
    if (planner_.parts_.tokenizer != nullptr &&
        (facts_.kind == RequestKind::kChat || facts_.kind == RequestKind::kCompletions)) {
      tokenize();
      return;
    }
    book();
  }

  void cancel() override {
    std::unique_ptr<TokenizeCall> call;
    std::shared_ptr<Plan> plan;
    std::shared_ptr<PlanListener> unneeded;  // goes without the lock
    {
      const std::lock_guard lock(mutex_);
      unneeded = std::exchange(listener_, nullptr);
      call = std::move(call_);
      plan = std::move(plan_);
    }
    if (call) call->cancel();
    if (plan) plan->close();
    leave();
  }

 private:
  const PlanningConfig& config() const { return planner_.config_; }

  void leave() {
    if (holds_permit_.exchange(false)) planner_.in_flight_.fetch_sub(1, kRelaxed);
  }

  bool is_known_model() const {
    const auto& aliases = config().model_aliases;
    return facts_.model.empty() || facts_.model == config().model_name ||
           std::find(aliases.begin(), aliases.end(), facts_.model) != aliases.end();
  }

  // Everything that refuses a request before a worker is looked for.
  std::optional<Refusal> find_fault() {
    if (!planner_.parts_.directory->synced()) {
      return Refusal{EppError::no_ready_endpoint, "The endpoints are not known yet."};
    }
    if (facts_.metadata_headers > kMostMetadataHeaders) {
      return Refusal{EppError::too_many_metadata_headers, {}};
    }
    if (config().strict_model && facts_.kind != RequestKind::kAny && !is_known_model()) {
      return Refusal{EppError::model_not_found, "The model '" + facts_.model + "' does not exist."};
    }
    if (facts_.pins_prefill) {
      return Refusal{EppError::invalid_request,
                     "nvext.prefill_worker_id is not accepted: the prefill worker is chosen here."};
    }
    if (!request_.subset || request_.observed) return std::nullopt;
    const EndpointSubset subset(*request_.subset);
    allowed_.emplace();
    const auto view = planner_.parts_.directory->view();
    view->for_each_destination([&](WorkerId id, const WorkerView::Known& known) {
      if (subset.allows(known.address, known.port)) allowed_->push_back(id);
    });
    if (!allowed_->empty()) return std::nullopt;
    return Refusal{EppError::no_ready_endpoint, "None of the endpoints that the gateway allows is ready."};
  }

  void tokenize() {
    TokenizeRequest wanted;
    wanted.api =
        facts_.kind == RequestKind::kChat ? TokenizedApi::kChatCompletions : TokenizedApi::kCompletions;
    wanted.body = request_.body;
    wanted.model = facts_.model;
    auto call = planner_.parts_.tokenizer->tokenize(
        std::move(wanted),
        [self = shared_from_this()](TokenizeResult result) { self->on_tokens(std::move(result)); });
    if (!call) return;
    {
      const std::lock_guard lock(mutex_);
      if (listener_) {
        call_ = std::move(call);
        return;
      }
    }
    call->cancel();  // the client left meanwhile, or the answer came
  }

  void on_tokens(TokenizeResult result) {
    if (auto* prompts = std::get_if<TokenizedPrompts>(&result)) {
      prompts_ = std::move(*prompts);
      book();
      return;
    }
    const auto& failure = std::get<TokenizeFailure>(result);
    if (failure.error != TokenizeError::kCancelled) planner_.tokenizer_failures_.fetch_add(1, kRelaxed);
    if (config().tokenizer_fallback == TokenizerFallback::kError) {
      finish(refusal_of(failure.error));
      return;
    }
    book();
  }

  Prompt prompt() {
    if (facts_.kind == RequestKind::kAny) return SizedPrompt{1};
    TokenPrompt tokens;
    tokens.cache_salt = salt();
    if (!is_known_model()) tokens.lora_name = facts_.model;
    if (const auto count = token_count(); count > 0 && !can_be_compared(tokens)) return SizedPrompt{count};
    if (facts_.kind == RequestKind::kTokens && !facts_.token_ids.empty()) {
      tokens.token_ids = facts_.token_ids;
      return tokens;
    }
    if (prompts_ && !prompts_->empty()) {
      if (prompts_->size() == 1 && !prompts_->front().token_ids.empty()) {
        media_ = media_by_block(prompts_->front().media, config().block_size);
        tokens.token_ids = prompts_->front().token_ids;
        tokens.media = media_;
        return tokens;
      }
    }
    const auto count = token_count();
    return SizedPrompt{count > 0 ? count : facts_.estimated_tokens()};
  }

  // 0: not known.
  std::uint64_t token_count() const {
    if (facts_.kind == RequestKind::kTokens) return facts_.token_ids.size();
    std::uint64_t total = 0;
    if (prompts_) {
      for (const auto& each : *prompts_) total += each.token_ids.size();
    }
    return total;
  }

  // What tells prompts apart is the client's to choose. Longer than what is remembered, it is routed by load,
  // as what the engine would take is not refused.
  bool can_be_compared(const TokenPrompt& prompt) const {
    const std::size_t limit = planner_.parts_.selectors.destination->config().limits.max_text_bytes;
    return prompt.cache_salt.size() <= limit && prompt.lora_name.size() <= limit;
  }

  bool injects_salt() const {
    return config().inject_cache_salt && facts_.can_take_salt && !facts_.tenant.empty();
  }
  std::string salt() const {
    return injects_salt() ? std::string(kTenantSalt) + facts_.tenant : facts_.cache_salt;
  }

  SelectRequest select_request() {
    SelectRequest request;
    request.model_name = config().model_name;
    request.prompt = prompt();
    request.tie_seed = facts_.request_id.empty() ? plan_id_ : facts_.request_id;
    request.expected_output_tokens = facts_.expected_output_tokens;
    request.priority_jump = facts_.priority_jump;
    request.strict_priority = facts_.strict_priority;
    request.policy_class = facts_.policy_class;
    if (facts_.first_token_goal && !queue_deadline_) {
      queue_deadline_ = planner_.parts_.clock() + *facts_.first_token_goal;
    }
    request.queue_deadline = queue_deadline_;
    request.explain = telemetry::log_enabled(Level::debug);
    return request;
  }
  SelectRequest destination_request() {
    SelectRequest request = select_request();
    request.allowed_workers = allowed_;
    if (facts_.pinned_worker) pin(request, *facts_.pinned_worker);
    const bool binds = planner_.parts_.selectors.destination->config().affinity.mode != AffinityMode::kOff;
    if (binds && !facts_.session_id.empty()) {
      request.session = SessionRef{.session_id = facts_.session_id, .final = facts_.session_final};
    }
    return request;
  }

  // The worker that the client insists on; without a rank, any of its ranks.
  void pin(SelectRequest& request, WorkerId worker) const {
    if (facts_.pinned_rank) {
      request.pinned_worker = WorkerRank{.worker = worker, .rank = *facts_.pinned_rank};
      return;
    }
    const bool allowed =
        !allowed_ || std::find(allowed_->begin(), allowed_->end(), worker) != allowed_->end();
    request.allowed_workers.emplace();
    if (allowed) request.allowed_workers->push_back(worker);
  }

  bool wants_prefill() const {
    return planner_.parts_.selectors.is_paired() && facts_.kind != RequestKind::kAny;
  }

  // Null when the client has left.
  std::shared_ptr<Plan> open_plan() {
    plan_id_ = plan_id_from(planner_.parts_.random());
    auto plan = planner_.parts_.ledger->open(plan_id_);
    const std::lock_guard lock(mutex_);
    if (!listener_) return nullptr;  // the plan goes with its last owner
    plan_ = plan;
    return plan;
  }

  void book() {
    const auto plan = open_plan();
    if (plan == nullptr) return;
    if (request_.observed) {
      book_as_routed(plan);
      return;
    }
    std::array<Plan::Wish, kLegs> round;
    std::size_t legs = 1;
    round[0] = destination_wish();
    decides_later_ = wants_prefill() && config().conditional_disaggregation;
    if (wants_prefill() && !decides_later_) round[legs++] = prefill_wish();
    reserve(*plan, std::span(round).first(legs));
  }

  // Where an earlier filter of the gateway sent it, by its headers; what is not said there the gateway may
  // tell with the answer.
  void book_as_routed(const std::shared_ptr<Plan>& plan) {
    const Selectors& selectors = planner_.parts_.selectors;
    const auto view = planner_.parts_.directory->view();
    PlannedRequest planned{.route = {}, .plan = plan, .kind = facts_.kind, .streams = facts_.streams};
    planned.route.destination = routed_to(kDestinationHeader);
    (void)plan->reserve_at(Leg::kDestination, *selectors.destination,
                           reservation(view->destination_at(planned.route.destination), kRankHeader));
    const std::string prefill = routed_to(kPrefillHeader);
    if (wants_prefill() && !prefill.empty()) {
      (void)plan->reserve_at(Leg::kPrefill, *selectors.prefill,
                             reservation(view->prefill_at(prefill), kPrefillRankHeader));
    }
    finish(std::move(planned));
  }

  // The first of a list, which is the one that is tried first.
  std::string routed_to(std::string_view header) const {
    const std::string_view value = request_.headers.last_filled(header).value_or("");
    return std::string(trimmed(value.substr(0, value.find(','))));
  }

  ReservationRequest reservation(std::optional<WorkerId> worker, std::string_view rank_header) {
    ReservationRequest request;
    request.model_name = config().model_name;
    request.prompt = prompt();
    request.expected_output_tokens = facts_.expected_output_tokens;
    if (!worker) return request;
    request.worker = WorkerRank{.worker = *worker, .rank = 0};
    const std::string_view rank = request_.headers.last_filled(rank_header).value_or("");
    std::from_chars(rank.data(), rank.data() + rank.size(), request.worker->rank);
    return request;
  }

  Plan::Wish destination_wish() {
    return {.leg = Leg::kDestination,
            .service = planner_.parts_.selectors.destination,
            .request = destination_request()};
  }
  Plan::Wish prefill_wish() {
    return {.leg = Leg::kPrefill,
            .service = planner_.parts_.selectors.prefill,
            .request = select_request(),
            .may_lack_workers = config().on_no_prefill == OnNoPrefill::kDecodeOnly};
  }

  void reserve(Plan& plan, std::span<Plan::Wish> round) {
    const auto self = shared_from_this();
    plan.reserve(round, self);
    // When they are in their queues: maintenance that ran before has not seen them, what runs later will.
    if (queue_deadline_ && planner_.parts_.wake_by) planner_.parts_.wake_by(*queue_deadline_);
  }

  void on_booked(BookingOutcome outcome) override {
    if (outcome) {
      finish(refusal_of(outcome->error, outcome->leg == Leg::kPrefill));
      return;
    }
    std::shared_ptr<Plan> plan;
    {
      const std::lock_guard lock(mutex_);
      plan = plan_;
    }
    if (!plan) return;
    if (std::exchange(decides_later_, false) && !stays_with_decode(*plan)) {
      Plan::Wish prefill = prefill_wish();
      reserve(*plan, std::span(&prefill, 1));
      return;
    }
    if (!books_again(plan)) answer(plan);
  }

  // A leg that was booked while another one waited may have lost its worker since: it is booked again, where
  // somebody is there.
  bool books_again(const std::shared_ptr<Plan>& plan) {
    if (rebookings_ == kMostRebookings) return false;
    const auto view = planner_.parts_.directory->view();
    std::array<Plan::Wish, kLegs> round;
    std::size_t legs = 0;
    for (const Leg leg : {Leg::kDestination, Leg::kPrefill}) {
      if (has_lost_its_worker(*plan, leg, *view) && plan->give_back(leg)) {
        round[legs++] = leg == Leg::kPrefill ? prefill_wish() : destination_wish();
      }
    }
    if (legs == 0) return false;
    ++rebookings_;
    planner_.rebooked_.fetch_add(legs, kRelaxed);
    reserve(*plan, std::span(round).first(legs));
    return true;
  }

  // The same while the other leg still waits, which may be long: where nobody is there any more, the request
  // is refused now, as a new one is. Not limited, as it comes only so often.
  void on_waiting(Plan& plan) override {
    const auto view = planner_.parts_.directory->view();
    for (const Leg leg : {Leg::kDestination, Leg::kPrefill}) {
      const auto worker = plan.booked_worker(leg);
      if (!worker || is_there(*worker, leg, *view) || !plan.give_back_while_waiting(leg, *worker)) continue;
      planner_.rebooked_.fetch_add(1, kRelaxed);
      Plan::Wish again = leg == Leg::kPrefill ? prefill_wish() : destination_wish();
      reserve(plan, std::span(&again, 1));
      return;
    }
  }

  static bool has_lost_its_worker(const Plan& plan, Leg leg, const WorkerView& view) {
    const auto worker = plan.booked_worker(leg);
    return worker && !is_there(*worker, leg, view);
  }

  static bool is_there(WorkerId worker, Leg leg, const WorkerView& view) {
    const auto* const known = view.find(worker);
    return known != nullptr && known->ready && known->is_prefill == (leg == Leg::kPrefill);
  }

  bool stays_with_decode(const Plan& plan) const {
    const auto booked = plan.booking(Leg::kDestination);
    if (!booked) return true;
    // Prefill beside many answers would hold up all of them.
    if (booked->facts.decode_busy.value_or(false)) return false;
    switch (config().conditional_policy) {
      case ConditionalPolicy::kIslBounding:
        return is_short(booked->facts);
      case ConditionalPolicy::kPrefillLoad:
        return is_prefill_busy();
      case ConditionalPolicy::kIslOrLoad:
        return is_short(booked->facts) || is_prefill_busy();
    }
    return false;
  }

  // Too few uncached tokens on the chosen worker for a handoff to pay.
  bool is_short(const SelectionFacts& facts) const {
    const std::uint64_t uncached = facts.isl_tokens - std::min(facts.overlap.disk, facts.isl_tokens);
    if (uncached < config().conditional_isl_threshold) return true;
    const auto& ratio = config().conditional_isl_ratio_threshold;
    return ratio && static_cast<double>(uncached) < *ratio * static_cast<double>(facts.isl_tokens);
  }

  // Whether even the least loaded prefill worker has too much to do.
  bool is_prefill_busy() const {
    const auto& threshold = config().conditional_prefill_busy_threshold;
    if (!threshold) return false;
    // Not by an advisory selection: its answer comes later when this runs within another one.
    const auto view = planner_.parts_.directory->view();
    bool busy = false;
    for (const auto& partition : planner_.parts_.selectors.prefill->loads(config().model_name)) {
      for (const WorkerLoad& load : partition.loads) {
        const auto* const known = view->find(load.rank.worker);
        if (known == nullptr || !known->ready) continue;
        if (load.active_prefill_tokens <= *threshold) return false;
        busy = true;
      }
    }
    return busy;
  }

  void answer(const std::shared_ptr<Plan>& plan) {
    const auto destination = plan->booking(Leg::kDestination);
    const auto prefill = plan->booking(Leg::kPrefill);
    const auto view = planner_.parts_.directory->view();
    const auto is_there = [&](const std::shared_ptr<const Selection>& booked) {
      return booked->worker && view->find(booked->facts.rank.worker) != nullptr;
    };
    if (!destination || !is_there(destination) || (prefill && !is_there(prefill))) {
      refuse(EppError::no_ready_endpoint);
      return;
    }
    log_explanation(plan->id(), Leg::kDestination, *destination);
    if (prefill) log_explanation(plan->id(), Leg::kPrefill, *prefill);
    if (wants_prefill() && !prefill) planner_.decode_only_.fetch_add(1, kRelaxed);

    PlannedRequest planned{.route = {}, .plan = plan, .kind = facts_.kind, .streams = facts_.streams};
    RouteAnswer& route = planned.route;
    route.destination = destination->worker->spec.endpoint;
    if (prefill) route.set_headers.emplace_back(kPrefillHeader, prefill->worker->spec.endpoint);
    if (destination->worker->spec.data_parallel_size > 1) {
      const auto name = planner_.parts_.selectors.is_paired() ? kRankHeader : kEngineRankHeader;
      route.set_headers.emplace_back(name, std::to_string(destination->facts.rank.rank));
    }
    if (prefill && prefill->worker->spec.data_parallel_size > 1) {
      route.set_headers.emplace_back(kPrefillRankHeader, std::to_string(prefill->facts.rank.rank));
    }
    if (injects_salt()) {
      route.replaced_body = std::make_shared<const std::string>(with_cache_salt(*request_.body, salt()));
    }
    finish(std::move(planned));
  }

  void refuse(EppError error) { finish(Refusal{.error = error, .message = {}}); }

  void finish(PlanResult&& result) {
    std::shared_ptr<PlanListener> listener;
    std::shared_ptr<Plan> plan;
    {
      const std::lock_guard lock(mutex_);
      listener = std::exchange(listener_, nullptr);
      plan = std::move(plan_);
      call_.reset();
    }
    leave();
    // Also when the client left: then the result is not wanted.
    if (!listener || std::holds_alternative<Refusal>(result)) {
      if (plan) plan->close();
    }
    request_.body.reset();
    if (listener) listener->on_plan(std::move(result));
  }

  RequestPlanner& planner_;
  ReceivedRequest request_;
  RequestFacts facts_;
  std::optional<std::vector<WorkerId>> allowed_;
  TokenizedPrompts prompts_;
  std::vector<BlockMedia> media_;
  std::string plan_id_;
  std::optional<SteadyTime> queue_deadline_;
  int rebookings_ = 0;
  bool decides_later_ = false;  // whether there will be a prefill leg, when the destination is booked
  std::atomic<bool> holds_permit_{false};

  std::mutex mutex_;  // of what cancel() meets
  std::shared_ptr<PlanListener> listener_;
  std::unique_ptr<TokenizeCall> call_;
  std::shared_ptr<Plan> plan_;
};

RequestPlanner::RequestPlanner(const PlanningConfig& config, Parts parts)
    : config_(config), parts_(std::move(parts)) {}

std::shared_ptr<PlanningRun> RequestPlanner::plan(ReceivedRequest request,
                                                  std::shared_ptr<PlanListener> listener) {
  auto run = std::make_shared<Run>(*this, std::move(request), std::move(listener));
  run->begin();
  return run;
}

PlannerCounts RequestPlanner::counts() const {
  return {.requests = requests_.load(kRelaxed),
          .refused_inflight = refused_inflight_.load(kRelaxed),
          .tokenizer_failures = tokenizer_failures_.load(kRelaxed),
          .decode_only = decode_only_.load(kRelaxed),
          .rebooked = rebooked_.load(kRelaxed)};
}

}  // namespace handoff::epp
