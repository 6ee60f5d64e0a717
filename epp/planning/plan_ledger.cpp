#include "epp/planning/plan_ledger.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace handoff::epp {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

bool lacks_workers(SelectionErrorCode code) {
  return code == SelectionErrorCode::kNotReady || code == SelectionErrorCode::kNoEligibleWorker;
}

}  // namespace

std::string_view to_string(Leg leg) {
  return leg == Leg::kPrefill ? "prefill" : "destination";
}

namespace {

std::string reservation_id(std::string_view plan, Leg leg) {
  std::string id(plan);
  id += leg == Leg::kPrefill ? "/p" : "/d";
  return id;
}

}  // namespace

std::string_view to_string(PlanState state) {
  switch (state) {
    case PlanState::kReserving:
      return "reserving";
    case PlanState::kReserved:
      return "reserved";
    case PlanState::kPublished:
      return "published";
    case PlanState::kPrefillReleased:
      return "prefill_released";
    case PlanState::kClosed:
      return "closed";
  }
  return "unknown";
}

Plan::Plan(Token, PlanLedger& ledger, std::string id) : ledger_(ledger), id_(std::move(id)) {}

Plan::~Plan() {
  close();
  ledger_.forget(*this);
}

PlanState Plan::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Plan::reserve(std::span<Wish> round, std::shared_ptr<BookingListener> listener) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == PlanState::kClosed) return;
    state_ = PlanState::kReserving;
    listener_ = std::move(listener);
    // All of the round are pending before the first is asked for, as answers may come at once.
    for (Wish& wish : round) {
      Slot& mine = slot(wish.leg);
      mine.reservation_id =
          mine.reservation_id.empty() ? reservation_id(id_, wish.leg) : next_reservation_id(wish.leg);
      mine.state = LegState::kPending;
      mine.may_lack_workers = wish.may_lack_workers;
      mine.service = wish.service;
      mine.waiting = {};
      wish.request.selection_id = mine.reservation_id;
      wish.request.holder = weak_from_this();
    }
  }
  for (Wish& wish : round) {
    {
      // A leg that failed at once has closed the plan.
      const std::lock_guard lock(mutex_);
      if (state_ == PlanState::kClosed) return;
    }
    auto waiting = wish.service->select_and_reserve(
        std::move(wish.request), [self = shared_from_this(), leg = wish.leg](Result<Selection>&& result) {
          self->on_leg(leg, std::move(result));
        });
    if (!waiting) continue;
    decltype(waiting) unwanted;
    {
      const std::lock_guard lock(mutex_);
      if (state_ == PlanState::kClosed) {
        unwanted = std::move(waiting);
      } else if (slot(wish.leg).state == LegState::kPending) {
        slot(wish.leg).waiting = std::move(waiting);
      }
    }
    if (unwanted) unwanted.cancel();  // not under the lock: it calls back
  }
}

bool Plan::give_back(Leg leg) {
  Undo undo;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != PlanState::kReserved || slot(leg).state != LegState::kBooked) return false;
    state_ = PlanState::kReserving;
    take_booking(slot(leg), undo);
  }
  undo.apply();
  return true;
}

bool Plan::give_back_while_waiting(Leg leg, WorkerId lost) {
  Undo undo;
  {
    const std::lock_guard lock(mutex_);
    Slot& mine = slot(leg);
    if (!waits_in_queue() || mine.state != LegState::kBooked) return false;
    if (mine.booked->facts.rank.worker != lost) return false;
    take_booking(mine, undo);
    // The other leg's answer must not end the round before this one is asked for again.
    mine.state = LegState::kPending;
    mine.waiting = {};
  }
  undo.apply();
  return true;
}

void Plan::look_after_waiting() {
  std::shared_ptr<BookingListener> listener;
  {
    const std::lock_guard lock(mutex_);
    const bool has_booking = std::any_of(slots_.begin(), slots_.end(),
                                         [](const Slot& each) { return each.state == LegState::kBooked; });
    if (has_booking && waits_in_queue()) listener = listener_;
  }
  if (listener) listener->on_waiting(*this);
}

std::optional<WorkerId> Plan::booked_worker(Leg leg) const {
  const std::lock_guard lock(mutex_);
  const Slot& mine = slot(leg);
  if (mine.booked == nullptr) return std::nullopt;
  return mine.booked->facts.rank.worker;
}

std::shared_ptr<const Selection> Plan::booking(Leg leg) const {
  const std::lock_guard lock(mutex_);
  const Slot& mine = slot(leg);
  if (mine.booked == nullptr) return nullptr;
  return mine.moved != nullptr ? mine.moved
                               : std::shared_ptr<const Selection>(shared_from_this(), mine.booked);
}

void Plan::on_leg(Leg leg, Result<Selection>&& result) {
  Undo undo;
  std::shared_ptr<BookingListener> listener;
  BookingOutcome outcome;
  {
    const std::lock_guard lock(mutex_);
    Slot& mine = slot(leg);
    if (result.has_value()) {
      mine.first = std::move(result).value();
      mine.booked = &mine.first;
      if (state_ == PlanState::kClosed) {
        take_booking(mine, undo);
      } else {
        mine.state = LegState::kBooked;
      }
    } else if (state_ != PlanState::kClosed) {
      if (mine.may_lack_workers && lacks_workers(result.error().code)) {
        mine.state = LegState::kMissing;
      } else {
        outcome = BookingFailure{leg, result.take_error()};
        close_locked(undo);
        listener = std::exchange(listener_, nullptr);
      }
    }
    if (state_ == PlanState::kReserving && round_is_booked()) {
      state_ = PlanState::kReserved;
      listener = std::exchange(listener_, nullptr);
    }
  }
  undo.apply();
  if (listener) listener->on_booked(std::move(outcome));
}

bool Plan::round_is_booked() const {
  for (const Slot& each : slots_) {
    if (each.state == LegState::kPending) return false;
  }
  return true;
}

// Not while the call that asks for a leg still runs: it reads what the listener made for it.
bool Plan::waits_in_queue() const {
  if (state_ != PlanState::kReserving || round_is_booked()) return false;
  return std::all_of(slots_.begin(), slots_.end(),
                     [](const Slot& each) { return each.state != LegState::kPending || each.waiting; });
}

bool Plan::publish() {
  const std::lock_guard lock(mutex_);
  if (state_ != PlanState::kReserved) return false;
  state_ = PlanState::kPublished;
  ledger_.published_.fetch_add(1, kRelaxed);
  return true;
}

bool Plan::release_prefill() {
  Undo undo;
  SelectionService* aggregated = nullptr;
  std::string id;
  std::uint64_t attempt = 0;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != PlanState::kPublished) return false;
    state_ = PlanState::kPrefillReleased;
    if (slot(Leg::kPrefill).state == LegState::kBooked) {
      take_booking(slot(Leg::kPrefill), undo);
    }
    // The destination carries prefill tokens when it prefills itself.
    const Slot& destination = slot(Leg::kDestination);
    if (destination.state == LegState::kBooked && destination.booked->facts.track_prefill_tokens) {
      aggregated = destination.service;
      id = destination.reservation_id;
      attempt = destination.booked->attempt;
    }
  }
  undo.apply();
  if (aggregated != nullptr) (void)aggregated->prefill_complete({id, attempt});
  return true;
}

bool Plan::close() {
  Undo undo;
  std::shared_ptr<BookingListener> unneeded;  // goes without the lock
  {
    const std::lock_guard lock(mutex_);
    if (state_ == PlanState::kClosed) return false;
    close_locked(undo);
    unneeded = std::exchange(listener_, nullptr);
  }
  undo.apply();
  return true;
}

void Plan::on_output(std::uint64_t tokens) {
  SelectionService* service = nullptr;
  std::string id;
  std::uint64_t attempt = 0;
  {
    const std::lock_guard lock(mutex_);
    const Slot& destination = slot(Leg::kDestination);
    if (destination.state != LegState::kBooked) return;
    service = destination.service;
    id = destination.reservation_id;
    attempt = destination.booked->attempt;
  }
  (void)service->output_progress({id, attempt}, tokens);
}

bool Plan::reserve_at(Leg leg, SelectionService& service, ReservationRequest request) {
  const std::lock_guard lock(mutex_);
  if (state_ == PlanState::kClosed) return false;
  state_ = PlanState::kReserved;
  Slot& mine = slot(leg);
  mine.service = &service;
  mine.reservation_id = reservation_id(id_, leg);
  std::uint64_t tokens = 1;
  if (const auto* prompt = std::get_if<TokenPrompt>(&request.prompt)) tokens = prompt->token_ids.size();
  if (const auto* prompt = std::get_if<SizedPrompt>(&request.prompt)) tokens = prompt->isl_tokens;
  mine.wanted = std::make_unique<ReservationRequest>();
  mine.wanted->model_name = request.model_name;
  mine.wanted->routing_group = request.routing_group;
  mine.wanted->expected_output_tokens = request.expected_output_tokens;
  mine.wanted->prompt = SizedPrompt{tokens};
  if (!request.worker) return false;
  request.selection_id = mine.reservation_id;
  auto booked = service.create_reservation(std::move(request));
  if (!booked) return false;
  mine.first = std::move(booked).value();
  mine.booked = &mine.first;
  mine.state = LegState::kBooked;
  return true;
}

ReservationRequest Plan::moved_request(const Slot& slot) const {
  ReservationRequest request;
  if (slot.booked == nullptr) {
    request = *slot.wanted;
  } else {
    const SelectionFacts& facts = slot.booked->facts;
    if (slot.booked->worker) {
      request.model_name = slot.booked->worker->spec.model_name;
      request.routing_group = slot.booked->worker->spec.routing_group;
    }
    request.prompt = SizedPrompt{facts.isl_tokens};
    request.track_prefill_tokens = facts.track_prefill_tokens;
  }
  if (state_ == PlanState::kPrefillReleased) request.track_prefill_tokens = false;
  return request;
}

bool Plan::move_destination(WorkerRank to) {
  Undo undo;
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    Slot& mine = slot(Leg::kDestination);
    if (state_ == PlanState::kClosed || (mine.booked == nullptr && mine.wanted == nullptr)) return false;
    moved = mine.booked != nullptr;
    if (moved && mine.booked->facts.rank.worker == to.worker) return false;
    ReservationRequest request = moved_request(mine);
    // The old id is still booked until the new one is.
    request.selection_id = next_reservation_id(Leg::kDestination);
    request.worker = to;
    auto booked = mine.service->create_reservation(request);
    if (!booked) return false;
    if (moved) take_booking(mine, undo);
    mine.state = LegState::kBooked;
    mine.reservation_id = std::move(request.selection_id);
    mine.moved = std::make_shared<const Selection>(std::move(booked).value());
    mine.booked = mine.moved.get();
  }
  undo.apply();
  if (moved) ledger_.moved_.fetch_add(1, kRelaxed);
  return true;
}

// A leg that was booked before: an id that was freed is remembered for a while.
std::string Plan::next_reservation_id(Leg leg) {
  return reservation_id(id_, leg) + std::to_string(++rebookings_);
}

void Plan::close_locked(Undo& undo) {
  const bool was_published = state_ == PlanState::kPublished || state_ == PlanState::kPrefillReleased;
  state_ = PlanState::kClosed;
  ledger_.closed_.fetch_add(1, kRelaxed);
  for (std::size_t i = 0; i < kLegs; ++i) {
    Slot& each = slots_[i];
    if (each.state == LegState::kPending) undo.cancel[i] = std::exchange(each.waiting, {});
    if (each.state == LegState::kBooked) take_booking(each, undo);
  }
  if (!was_published && undo.frees > 0) ledger_.compensated_.fetch_add(1, kRelaxed);
}

void Plan::take_booking(Slot& slot, Undo& undo) {
  undo.free[undo.frees++] = {slot.service, slot.reservation_id, slot.booked->attempt};
  slot.booked = nullptr;
  slot.state = LegState::kFreed;
}

void Plan::Undo::apply() {
  for (PendingSelection& waiting : cancel) {
    if (waiting) waiting.cancel();
  }
  // A booking that its worker's removal already dropped is none the worse for it.
  for (std::size_t i = 0; i < frees; ++i) {
    (void)free[i].service->free_reservation({free[i].id, free[i].attempt});
  }
}

std::shared_ptr<Plan> PlanLedger::open(std::string id) {
  auto plan = std::make_shared<Plan>(Plan::Token{}, *this, std::move(id));
  opened_.fetch_add(1, kRelaxed);
  Shard& shard = shard_of(plan->id());
  const std::lock_guard lock(shard.mutex);
  shard.plans.push_back(*plan);
  return plan;
}

std::size_t PlanLedger::open_plans() const {
  return opened_.load(kRelaxed) - closed_.load(kRelaxed);
}

PlanCounts PlanLedger::counts() const {
  return {.opened = opened_.load(kRelaxed),
          .published = published_.load(kRelaxed),
          .closed = closed_.load(kRelaxed),
          .compensated = compensated_.load(kRelaxed),
          .moved = moved_.load(kRelaxed)};
}

std::vector<PlanLedger::Line> PlanLedger::list(std::size_t limit) const {
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    for (const Plan& open : shard.plans) {
      if (plans.size() == limit) break;
      // Null for one that is just going away.
      if (auto plan = open.weak_from_this().lock()) plans.push_back(std::move(plan));
    }
  }
  // Outside of the shards' locks: the last owner of a plan takes it out of its shard.
  std::vector<Line> lines;
  for (const auto& plan : plans) lines.push_back({plan->id(), plan->state()});
  return lines;
}

void PlanLedger::look_after_waiting() {
  std::vector<std::shared_ptr<Plan>> plans;
  for (Shard& shard : shards_) {
    {
      const std::lock_guard lock(shard.mutex);
      for (Plan& open : shard.plans) {
        if (auto plan = open.weak_from_this().lock()) plans.push_back(std::move(plan));
      }
    }
    // As in list().
    for (const auto& plan : plans) plan->look_after_waiting();
    plans.clear();
  }
}

PlanLedger::Shard& PlanLedger::shard_of(std::string_view id) {
  return shards_[std::hash<std::string_view>{}(id) % kShards];
}

void PlanLedger::forget(Plan& plan) {
  Shard& shard = shard_of(plan.id());
  const std::lock_guard lock(shard.mutex);
  shard.plans.erase(shard.plans.iterator_to(plan));
}

}  // namespace handoff::epp
