#include "epp/planning/request_life.hpp"

#include <utility>

#include "epp/planning/housekeeping.hpp"
#include "shared/telemetry/log.hpp"
#include "shared/telemetry/rate_limited_warning.hpp"

namespace handoff::epp {
namespace {

using telemetry::Level;
using telemetry::LogLine;

double in_milliseconds(SteadyTime::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// A gateway with rules of its own does it with every request.
void warn_of_move(std::string_view request_id, std::string_view picked, std::string_view served, bool moved) {
  static telemetry::RateLimitedWarning warning{std::chrono::seconds(30)};
  const auto suppressed = warning.try_pass();
  LogLine(suppressed ? Level::warn : Level::debug, "served_elsewhere")
      .field("request_id", request_id)
      .field("picked", picked)
      .field("served", served)
      .field("booking_moved", moved)
      .field("suppressed", suppressed.value_or(0));
}

}  // namespace

// Where a planner's thread leaves the plan for the stream's.
class RequestLife::Mailbox final : public PlanListener {
 public:
  explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void on_plan(PlanResult result) override {
    const std::lock_guard lock(mutex_);
    if (!wake_) return;  // nobody is there: what was booked undoes itself
    result_ = std::move(result);
    // Under the lock, so that the stream can't go away meanwhile.
    if (waiting_) wake_();
  }

  // The result if it is there; else the next one wakes the stream.
  std::optional<PlanResult> take() {
    const std::lock_guard lock(mutex_);
    waiting_ = true;
    return std::exchange(result_, std::nullopt);
  }

  void close() {
    std::optional<PlanResult> unwanted;
    const std::lock_guard lock(mutex_);
    wake_ = nullptr;
    unwanted = std::exchange(result_, std::nullopt);
  }

 private:
  std::mutex mutex_;
  std::function<void()> wake_;
  bool waiting_ = false;
  std::optional<PlanResult> result_;
};

RequestLife::RequestLife(const LifeServices& services, std::function<void()> wake)
    : services_(services), mailbox_(std::make_shared<Mailbox>(std::move(wake))) {}

RequestLife::~RequestLife() {
  on_stream_ended();
}

void RequestLife::on_request(ReceivedRequest request) {
  received_at_ = services_.clock();
  request_id_ = std::string(request.headers.first("x-request-id").value_or(""));
  run_ = services_.planner->plan(std::move(request), mailbox_);
  on_wake();
}

void RequestLife::on_wake() {
  if (auto result = mailbox_->take()) take(std::move(*result));
}

void RequestLife::take(PlanResult result) {
  run_.reset();
  if (auto* refusal = std::get_if<Refusal>(&result)) {
    const EppError error = refusal->error;
    if (!stream_->refuse(std::move(*refusal))) return;
    LogLine(Level::info, "request_refused")
        .field("request_id", request_id_)
        .field("code", row_of(error).code)
        .field("status", row_of(error).status);
    return;
  }
  auto& planned = std::get<PlannedRequest>(result);
  destination_ = planned.route.destination;
  kind_ = planned.kind;
  streams_ = planned.streams;
  if (!stream_->route(std::move(planned.route)) || response_ended_ || !planned.plan->publish()) {
    planned.plan->close();
    return;
  }
  plan_ = std::move(planned.plan);
  published_at_ = services_.clock();
  if (!served_.empty()) on_served_endpoint(served_);
  if (first_byte_came_) {
    plan_->release_prefill();
  } else {
    plan_prefill_release();
  }
}

// The first byte of an answer that is not streamed is its last as well, so prefill is released by estimate.
void RequestLife::plan_prefill_release() {
  if (streams_ || services_.housekeeping == nullptr) return;
  if (services_.config->nonstream_release != NonstreamRelease::kEstimate) return;
  auto booked = plan_->booking(Leg::kPrefill);
  if (!booked) booked = plan_->booking(Leg::kDestination);
  if (!booked || !booked->facts.track_prefill_tokens) return;
  const auto& facts = booked->facts;
  const auto expected = services_.rates->expected(facts.rank.worker, facts.effective_prefill_tokens);
  if (expected) services_.housekeeping->release_prefill_at(published_at_ + *expected, plan_);
}

void RequestLife::on_abandoned() {
  if (run_) std::exchange(run_, nullptr)->cancel();
}

void RequestLife::on_response_started(unsigned status, bool event_stream) {
  status_ = status;
  meter_.start(event_stream);
}

void RequestLife::on_first_response_byte() {
  first_byte_came_ = true;
  if (!plan_) return;
  const auto prefill = plan_->booking(Leg::kPrefill);
  const auto destination = plan_->booking(Leg::kDestination);
  if (!plan_->release_prefill() || !streams_ || status_ != 200) return;
  const auto& booked = prefill ? prefill : destination;
  if (!booked) return;
  services_.rates->learn(booked->facts.rank.worker, booked->facts.effective_prefill_tokens,
                         services_.clock() - published_at_);
}

void RequestLife::on_response_bytes(std::string_view bytes) {
  if (!plan_) return;
  meter_.on_bytes(bytes);
  // A block at a time is as fine as load is counted.
  if (meter_.events() < reported_output_ + services_.config->block_size) return;
  reported_output_ = meter_.events();
  plan_->on_output(reported_output_);
}

void RequestLife::on_served_endpoint(std::string_view endpoint) {
  if (!plan_) {
    if (stream_->observes_only()) served_ = endpoint;
    return;
  }
  if (endpoint == destination_) return;
  const auto view = services_.directory->view();
  const auto worker = view->destination_at(endpoint);
  const bool moved = worker && plan_->move_destination({.worker = *worker, .rank = 0});
  if (destination_.empty()) {  // nobody knew before
    destination_ = std::string(endpoint);
    return;
  }
  warn_of_move(request_id_, destination_, endpoint, moved);
  destination_ = std::string(endpoint);
}

void RequestLife::on_response_ended() {
  response_ended_ = true;
  finish("complete");
}

void RequestLife::on_stream_ended() {
  if (std::exchange(ended_, true)) return;
  mailbox_->close();
  on_abandoned();
  finish("stream_ended");
}

void RequestLife::finish(std::string_view how) {
  if (!plan_) return;
  const auto plan = std::exchange(plan_, nullptr);
  if (telemetry::log_enabled(Level::debug)) {
    const Usage usage = meter_.usage();
    LogLine line(Level::debug, "request_done");
    line.field("request_id", request_id_)
        .field("plan", plan->id())
        .field("kind", to_string(kind_))
        .field("destination", destination_)
        .field("end", how)
        .field("status", status_)
        .field("planning_ms", in_milliseconds(published_at_ - received_at_))
        .field("total_ms", in_milliseconds(services_.clock() - received_at_))
        .field("events", meter_.events());
    if (const auto prefill = plan->booking(Leg::kPrefill); prefill && prefill->worker) {
      line.field("prefill", prefill->worker->spec.endpoint);
    }
    if (usage.prompt_tokens) line.field("prompt_tokens", *usage.prompt_tokens);
    if (usage.completion_tokens) line.field("completion_tokens", *usage.completion_tokens);
    if (usage.cached_tokens) line.field("cached_tokens", *usage.cached_tokens);
  }
  plan->close();
}

}  // namespace handoff::epp
