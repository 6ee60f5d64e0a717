#include "tests/unit/epp/selection/selection_fixture.hpp"

namespace handoff::epp {
namespace {

using test::Answer;
using test::seconds;

class Reservation : public test::SelectionFixture {};

TEST_F(Reservation, AggregatedBooksPrefillTokensAndBlocks) {
  start();
  add_workers(1);
  const Selection selection = book(request("a", hashed({1, 2, 3}, 50)));
  EXPECT_TRUE(selection.booked);
  EXPECT_EQ(selection.facts.isl_tokens, 50u);
  EXPECT_EQ(selection.facts.effective_prefill_tokens, 50u);
  EXPECT_EQ(selection.facts.block_size, 16u);
  EXPECT_EQ(selection.worker->spec.endpoint, "10.0.0.1:8000");
  expect_load(1, 50, 3, 1);
  EXPECT_EQ(*service->prefill_complete({"a"}), LifecycleOutcome::kApplied);
  expect_load(1, 0, 3, 1);
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kApplied);
  expect_load(1, 0, 0, 0);
}

// effective = max(0, isl - cached tokens of the chosen worker); disk and host at their weights.
TEST_F(Reservation, BooksOnlyTheTokensThatMustBeComputed) {
  start();
  add_workers(1);
  view.set({1, 0}, 1, 1, 1);
  const Selection selection = book(request("a", hashed({1, 2, 3, 4}, 70)));
  EXPECT_EQ(selection.facts.effective_prefill_tokens, 70u - 16 - 12 - 4);
  EXPECT_EQ(selection.facts.overlap.device, 16u);
  EXPECT_EQ(selection.facts.overlap.host, 32u);
  EXPECT_EQ(selection.facts.overlap.disk, 48u);
  expect_load(1, 38, 4, 1);
}

TEST_F(Reservation, AFullyCachedPromptBooksNoPrefill) {
  start();
  add_workers(1);
  view.set({1, 0}, 2);
  book(request("a", hashed({1, 2})));
  expect_load(1, 0, 2, 1);
  EXPECT_EQ(*service->prefill_complete({"a"}), LifecycleOutcome::kAlreadyDone);
}

// Pending tokens, no blocks, in one step: what an embedder had to build from two calls and a mutex.
TEST_F(Reservation, PrefillRoleBooksPendingTokensWithoutBlocks) {
  start(SelectorRole::kPrefill);
  add_workers(2);
  view.set({1, 0}, 2);
  const Selection selection = book(request("a", hashed({1, 2, 3, 4})));
  EXPECT_EQ(selection.facts.rank.worker, 1u);
  EXPECT_EQ(selection.facts.potential_decode_blocks, 0u);
  expect_load(1, 32, 0, 1);
  EXPECT_EQ(*service->output_progress({"a"}, 1000), LifecycleOutcome::kApplied);
  EXPECT_EQ(*service->add_output_block({"a"}, 0.5), LifecycleOutcome::kAlreadyDone);
  expect_load(1, 32, 0, 1);
  service->prefill_complete({"a"});
  expect_load(1, 0, 0, 1);
  service->free_reservation({"a"});
  expect_load(1, 0, 0, 0);
}

TEST_F(Reservation, DecodeRoleBooksBlocksAndCountsRequests) {
  SelectorConfig config = SelectorConfig::for_role(SelectorRole::kDecode);
  config.cost.decode_active_request_weight = 1.0;
  start(config);
  add_workers(2);
  book(pinned(request("a", hashed({1, 2, 3})), 1));
  // The same prompt again shares nothing: its blocks arrive by a transfer of their own.
  const Selection second = book(pinned(request("b", hashed({1, 2, 3})), 1));
  EXPECT_EQ(second.facts.potential_decode_blocks, 6u);
  expect_load(1, 0, 6, 2);
  EXPECT_EQ(book(request("c", hashed({1, 2, 3}))).facts.rank.worker, 2u);
  EXPECT_EQ(*service->prefill_complete({"a"}), LifecycleOutcome::kAlreadyDone);
  // Requests alone decide when there are no blocks.
  book(sized("d", 5));
  book(sized("e", 5));
  EXPECT_EQ(load(1).active_requests + load(2).active_requests, 5u);
  EXPECT_EQ(view.matches, 0);
}

TEST_F(Reservation, CountsItsOwnBlocksOnceInThePotential) {
  start();
  add_workers(1);
  const Selection first = book(request("a", hashed({1, 2, 3})));
  EXPECT_EQ(first.facts.potential_decode_blocks, 3u);
  // Two of three are active already.
  const Selection second = book(request("b", hashed({1, 2, 9})));
  EXPECT_EQ(second.facts.potential_decode_blocks, 4u);
  expect_load(1, 96, 4, 2);
}

// potential_decode_blocks > threshold x total_kv_blocks; absent if either is unknown.
TEST_F(Reservation, SaysWhetherTheDecodeSideIsBusy) {
  SelectorConfig config;
  config.decode_busy_threshold = 0.5;
  start(config);
  WorkerSpec known = spec(1);
  known.total_kv_blocks = 4;
  service->upsert_worker(known);
  service->upsert_worker(spec(2));
  EXPECT_EQ(book(pinned(request("a", hashed({1, 2})), 1)).facts.decode_busy, false);
  EXPECT_EQ(book(pinned(request("b", hashed({1, 2, 3})), 1)).facts.decode_busy, true);
  EXPECT_EQ(book(pinned(request("c", hashed({1, 2, 3})), 2)).facts.decode_busy, std::nullopt);
}

TEST_F(Reservation, TheSameIdAgainIsTheSameBooking) {
  start();
  add_workers(3);
  const Selection first = book(request("a", hashed({1, 2, 3})));
  book(pinned(sized("load", 1000), first.facts.rank.worker));
  const Selection again = book(request("a", hashed({7, 8})));
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.facts.rank, first.facts.rank);
  EXPECT_EQ(again.attempt, first.attempt);
  EXPECT_EQ(again.facts.isl_tokens, 48u);
  EXPECT_EQ(service->stats().live_reservations, 2u);
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kApplied);
  EXPECT_EQ(service->stats().live_reservations, 1u);
}

TEST_F(Reservation, ARepeatThatExcludesTheBookedWorkerIsAConflict) {
  start();
  add_workers(2);
  book(pinned(sized("a", 100), 1));
  SelectRequest elsewhere = sized("a", 100);
  elsewhere.allowed_workers = {{2}};
  EXPECT_EQ(reserve(elsewhere).error().code, SelectionErrorCode::kConflict);
  EXPECT_EQ(reserve(pinned(sized("a", 100), 2)).error().code, SelectionErrorCode::kConflict);
  EXPECT_EQ(load(1).active_requests, 1u);
}

TEST_F(Reservation, AnIdBelongsToOnePartition) {
  start();
  add_workers(1);
  WorkerSpec other = spec(2);
  other.model_name = "other";
  service->upsert_worker(other);
  book(sized("a", 100));
  SelectRequest there = sized("a", 100);
  there.model_name = "other";
  EXPECT_EQ(reserve(there).error().code, SelectionErrorCode::kConflict);
}

TEST_F(Reservation, FreesExactlyOnce) {
  start();
  add_workers(1);
  book(request("a", hashed({1, 2})));
  book(request("b", hashed({1, 2})));
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kApplied);
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->prefill_complete({"a"}), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->output_progress({"a"}, 5), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->add_output_block({"a"}, {}), LifecycleOutcome::kAlreadyDone);
  expect_load(1, 32, 2, 1);
}

TEST_F(Reservation, AFreeThatComesFirstFinishesTheRequest) {
  start();
  add_workers(1);
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kRemembered);
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(reserve(sized("a", 100)).error().code, SelectionErrorCode::kFinished);
  expect_load(1, 0, 0, 0);
  // So does a free that came in time: a late duplicate of the selection books nothing.
  book(sized("b", 100));
  service->free_reservation({"b"});
  EXPECT_EQ(reserve(sized("b", 100)).error().code, SelectionErrorCode::kFinished);
}

TEST_F(Reservation, OtherEarlyCallsApplyToTheBooking) {
  start();
  add_workers(1);
  EXPECT_EQ(*service->prefill_complete({"a"}), LifecycleOutcome::kRemembered);
  EXPECT_EQ(*service->output_progress({"a"}, 32), LifecycleOutcome::kRemembered);
  book(request("a", hashed({1, 2})));
  expect_load(1, 0, 4, 1);
  service->free_reservation({"a"});
  expect_load(1, 0, 0, 0);
}

TEST_F(Reservation, EarlyCallsSurviveASelectionThatFails) {
  start();
  add_workers(1);
  service->prefill_complete({"a"});
  SelectRequest nowhere = sized("a", 100);
  nowhere.constraints.required_taints = {"none has it"};
  EXPECT_FALSE(reserve(nowhere));
  book(sized("a", 100));
  EXPECT_EQ(load(1).active_prefill_tokens, 0u);
}

TEST_F(Reservation, RetiredIdsAreForgottenInTimeAndNumber) {
  SelectorConfig config;
  config.limits.retired_id_ttl = seconds(120);
  config.limits.max_retired_ids = 160;
  start(config);
  add_workers(1);
  service->free_reservation({"a"});
  clock.advance(seconds(119));
  EXPECT_FALSE(reserve(sized("a", 100)));
  clock.advance(seconds(1));
  EXPECT_TRUE(reserve(sized("a", 100)));
  service->free_reservation({"first"});
  for (int i = 0; i < 2000; ++i) service->free_reservation({"id-" + std::to_string(i)});
  EXPECT_TRUE(reserve(sized("first", 100)));
}

TEST_F(Reservation, ANamedAttemptNeverHitsALaterBooking) {
  start();
  add_workers(1);
  const Selection old = book(sized("a", 100));
  service->free_reservation({"a"});
  clock.advance(seconds(200));
  const Selection later = book(sized("a", 100));
  EXPECT_NE(old.attempt, later.attempt);
  EXPECT_EQ(*service->free_reservation({"a", old.attempt}), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(load(1).active_requests, 1u);
  EXPECT_EQ(*service->free_reservation({"a", later.attempt}), LifecycleOutcome::kApplied);
  EXPECT_EQ(*service->free_reservation({"b", 77}), LifecycleOutcome::kAlreadyDone);
  EXPECT_TRUE(reserve(sized("b", 100)));
}

TEST_F(Reservation, NoTwoBookingsOfTheServiceHaveTheSameAttempt) {
  start();
  add_workers(1);
  WorkerSpec elsewhere = spec(2);
  elsewhere.routing_group = "g2";
  service->upsert_worker(elsewhere);
  const auto old = book(sized("a", 50)).attempt;
  service->free_reservation({"a"});
  clock.advance(seconds(200));
  SelectRequest again = sized("a", 50);
  again.routing_group = "g2";
  EXPECT_NE(book(again).attempt, old);
  EXPECT_EQ(*service->free_reservation({"a", old}), LifecycleOutcome::kAlreadyDone);
  expect_load(2, 50, 3, 1);
  // Nor does a partition that ended and came again begin anew.
  service->delete_worker(1);
  service->upsert_worker(spec(1));
  EXPECT_GT(book(sized("b", 50)).attempt, old);
}

TEST_F(Reservation, ARepeatBringsTheFactsThatItAsksFor) {
  start();
  add_workers(1);
  book(request("a", hashed({1, 2, 3})));
  SelectRequest asks = request("a", hashed({1, 2, 3}));
  asks.return_booking_facts = true;
  EXPECT_EQ(book(asks).sequence_hashes, (std::vector<std::uint64_t>{1, 2, 3}));
  // Another prompt under the id is not what was booked.
  asks.prompt = hashed({9, 9, 9, 9});
  EXPECT_TRUE(book(asks).sequence_hashes.empty());
}

TEST_F(Reservation, ABookingHasABoundedNumberOfHolders) {
  start();
  add_workers(1);
  std::vector<std::shared_ptr<int>> holders;
  SelectionErrorCode last{};
  std::size_t accepted = 0;
  for (int i = 0; i < 40; ++i) {
    holders.push_back(std::make_shared<int>(i));
    SelectRequest made = sized("a", 50);
    made.holder = holders.back();
    const auto result = reserve(made);
    if (result) ++accepted;
    if (!result) last = result.error().code;
    // The same one again is no further one.
    EXPECT_EQ(reserve(made).has_value(), result.has_value());
  }
  EXPECT_EQ(accepted, Booking::kMaxHolders);
  EXPECT_EQ(last, SelectionErrorCode::kConflict);
  holders.erase(holders.begin(), holders.begin() + 5);
  holders.push_back(std::make_shared<int>(99));
  SelectRequest made = sized("a", 50);
  made.holder = holders.back();
  EXPECT_TRUE(reserve(made)) << "the dead ones make room";
}

TEST_F(Reservation, ALiveLeaseNeverExpires) {
  start();
  add_workers(1);
  Lease lease = reserve(sized("a", 100))->lease;
  for (int hour = 0; hour < 10; ++hour) {
    clock.advance(seconds(3600));
    service->maintain();
  }
  EXPECT_EQ(load(1).active_requests, 1u);
  EXPECT_EQ(service->stats().orphans_expired, 0u);
}

TEST_F(Reservation, OrphansExpireAndAreCounted) {
  start();
  add_workers(1);
  { const Lease dropped = reserve(sized("a", 100))->lease; }
  service->maintain();
  clock.advance(seconds(299));
  service->maintain();
  EXPECT_EQ(load(1).active_requests, 1u);
  clock.advance(seconds(1));
  service->maintain();
  EXPECT_EQ(load(1).active_requests, 0u);
  EXPECT_EQ(service->stats().orphans_expired, 1u);
  // Its free is then late, not wrong.
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kAlreadyDone);
}

TEST_F(Reservation, ProgressAndRenewalKeepWhatHasNoLease) {
  start();
  add_workers(1);
  reserve(sized("progress", 16))->lease.reset();
  reserve(sized("renewed", 16))->lease.reset();
  reserve(sized("neither", 16))->lease.reset();
  for (std::uint64_t minute = 1; minute <= 20; ++minute) {
    service->maintain();
    clock.advance(seconds(60));
    service->output_progress({"progress"}, minute);
    EXPECT_EQ(*service->renew_reservation({"renewed"}), LifecycleOutcome::kApplied);
  }
  service->maintain();
  EXPECT_EQ(load(1).active_requests, 2u);
  EXPECT_EQ(service->stats().orphans_expired, 1u);
  EXPECT_EQ(*service->renew_reservation({"neither"}), LifecycleOutcome::kAlreadyDone);
}

TEST_F(Reservation, IsHeldByWhoeverTheRequestNames) {
  start();
  add_workers(1);
  auto holder = std::make_shared<int>(1);
  SelectRequest wanted = sized("a", 100);
  wanted.holder = holder;
  const auto booked = reserve(wanted);
  ASSERT_TRUE(booked);
  EXPECT_FALSE(booked->lease) << "there is a holder already";
  for (int i = 0; i < 3; ++i) {
    clock.advance(seconds(1000));
    service->maintain();
  }
  EXPECT_EQ(service->stats().live_reservations, 1u);
  holder.reset();
  for (int i = 0; i < 3; ++i) {
    clock.advance(seconds(1000));
    service->maintain();
  }
  EXPECT_EQ(service->stats().live_reservations, 0u);
  EXPECT_EQ(service->stats().orphans_expired, 1u);
}

// Only its holder knows the id, so nothing is kept of it.
TEST_F(Reservation, OfAHolderIsNotRememberedWhenItHasEnded) {
  start();
  add_workers(1);
  const auto holder = std::make_shared<int>(1);
  SelectRequest wanted = sized("a", 100);
  wanted.holder = holder;
  const std::uint64_t attempt = reserve(wanted)->attempt;
  EXPECT_EQ(*service->free_reservation({"a", attempt}), LifecycleOutcome::kApplied);
  EXPECT_EQ(*service->free_reservation({"a", attempt}), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->output_progress({"a", attempt}, 10), LifecycleOutcome::kAlreadyDone);
  EXPECT_TRUE(reserve(wanted)) << "another one of that name is another one";
  EXPECT_EQ(*service->free_reservation({"a", attempt}), LifecycleOutcome::kAlreadyDone) << "an old attempt";
  EXPECT_EQ(service->stats().live_reservations, 1u);
}

TEST_F(Reservation, ARepeatTakesOverTheLease) {
  start();
  add_workers(1);
  reserve(sized("a", 100))->lease.reset();
  service->maintain();
  const Lease second = reserve(sized("a", 100))->lease;
  clock.advance(seconds(1000));
  service->maintain();
  EXPECT_EQ(load(1).active_requests, 1u);
}

TEST_F(Reservation, OutputGrowsTheLoadAsReported) {
  start();
  add_workers(1);
  SelectRequest wanted = request("a", hashed({1, 2}));
  wanted.expected_output_tokens = 64;
  book(wanted);
  service->output_progress({"a"}, 32);
  // decay 0.5 over two prompt and two output blocks
  expect_load(1, 32, 2, 1);
  EXPECT_EQ(*service->output_progress({"a"}, 16), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(*service->add_output_block({"a"}, 1.0), LifecycleOutcome::kApplied);
  expect_load(1, 32, 5, 1);
  EXPECT_EQ(service->add_output_block({"a"}, 1.1).error().code, SelectionErrorCode::kBadRequest);
  EXPECT_EQ(service->add_output_block({"a"}, -0.1).error().code, SelectionErrorCode::kBadRequest);
  EXPECT_EQ(service->add_output_block({"a"}, 0.0 / 0.0).error().code, SelectionErrorCode::kBadRequest);
  EXPECT_EQ(service->output_progress({"a"}, UINT64_MAX).error().code, SelectionErrorCode::kBadRequest);
}

TEST_F(Reservation, OverridesTurnTrackingOff) {
  start();
  add_workers(1);
  SelectRequest untracked = request("a", hashed({1, 2}));
  untracked.overrides.track_prefill_tokens = false;
  EXPECT_FALSE(book(untracked).facts.track_prefill_tokens);
  expect_load(1, 0, 2, 1);
  SelectRequest unshared = request("b", hashed({1, 2}));
  unshared.overrides.assume_kv_reuse = false;
  book(unshared);
  expect_load(1, 32, 4, 2);
}

TEST_F(Reservation, BookingFactsReplayOnAnotherService) {
  start();
  add_workers(2);
  view.set({2, 0}, 2);
  SelectRequest wanted = request("a", hashed({1, 2, 3}));
  wanted.return_booking_facts = true;
  const Selection chosen = book(wanted);
  ASSERT_EQ(chosen.sequence_hashes.size(), 3u);
  const WorkerLoad original = load(2);

  start();
  add_workers(2);
  ReservationRequest replay;
  replay.selection_id = "a";
  replay.worker = chosen.facts.rank;
  replay.prompt = hashed(chosen.sequence_hashes, chosen.facts.isl_tokens);
  replay.effective_prefill_tokens = chosen.facts.effective_prefill_tokens;
  const auto copy = service->create_reservation(replay);
  ASSERT_TRUE(copy);
  EXPECT_EQ(load(2).active_prefill_tokens, original.active_prefill_tokens);
  EXPECT_EQ(load(2).active_decode_blocks, original.active_decode_blocks);
  EXPECT_EQ(load(2).active_requests, 1u);
  EXPECT_TRUE(service->create_reservation(replay)->repeated);
  replay.worker = {1, 0};
  EXPECT_EQ(service->create_reservation(replay).error().code, SelectionErrorCode::kConflict);
}

TEST_F(Reservation, ExplicitReservationsAreStrict) {
  start();
  add_workers(1);
  ReservationRequest wanted;
  wanted.selection_id = "a";
  wanted.worker = {1, 0};
  wanted.prompt = hashed({1, 2});
  wanted.effective_prefill_tokens = 33;
  EXPECT_EQ(service->create_reservation(wanted).error().code, SelectionErrorCode::kBadRequest);
  wanted.effective_prefill_tokens = 32;
  wanted.worker = {1, 1};
  EXPECT_EQ(service->create_reservation(wanted).error().code, SelectionErrorCode::kNotFound);
  wanted.worker = {9, 0};
  EXPECT_EQ(service->create_reservation(wanted).error().code, SelectionErrorCode::kNotFound);
  wanted.worker = {1, 0};
  service->mark_worker(1, WorkerCondition::kUnavailable);
  EXPECT_EQ(service->create_reservation(wanted).error().code, SelectionErrorCode::kNotFound);
  service->mark_worker(1, WorkerCondition::kServing);
  wanted.selection_id.clear();
  EXPECT_EQ(service->create_reservation(wanted).error().code, SelectionErrorCode::kBadRequest);
  wanted.selection_id = "a";
  wanted.track_prefill_tokens = false;
  ASSERT_TRUE(service->create_reservation(wanted));
  expect_load(1, 0, 2, 1);
}

TEST_F(Reservation, LiveReservationsAreBounded) {
  SelectorConfig config;
  config.limits.max_reservations = 2;
  start(config);
  add_workers(1);
  book(sized("a", 1));
  book(sized("b", 1));
  EXPECT_EQ(reserve(sized("c", 1)).error().code, SelectionErrorCode::kReservationsFull);
  service->free_reservation({"a"});
  EXPECT_TRUE(reserve(sized("c", 1)));
}

TEST_F(Reservation, PredictsOnlyForWorkersWithoutEventsAndOnlyWhenBooked) {
  start();
  service->upsert_worker(spec(1));
  WorkerSpec quiet = spec(2);
  quiet.kv_events = false;
  service->upsert_worker(quiet);
  ask(pinned(request("", hashed({1, 2})), 2));
  book(pinned(request("a", hashed({1, 2})), 1));
  EXPECT_TRUE(view.predictions.empty());
  book(pinned(request("b", hashed({1, 2, 3})), 2));
  ASSERT_EQ(view.predictions.size(), 1u);
  EXPECT_EQ(view.predictions[0].first, (WorkerRank{2, 0}));
  EXPECT_EQ(view.predictions[0].second, 3u);
}

TEST_F(Reservation, MakesUpAnIdWhenNoneIsGiven) {
  start();
  add_workers(1);
  const Selection first = book(sized("", 10));
  const Selection second = book(sized("", 10));
  EXPECT_EQ(first.selection_id.size(), 36u);
  EXPECT_EQ(first.selection_id[14], '4');
  EXPECT_NE(first.selection_id, second.selection_id);
  EXPECT_EQ(*service->free_reservation({first.selection_id}), LifecycleOutcome::kApplied);
}

TEST_F(Reservation, LeasesMayOutliveTheService) {
  start();
  add_workers(1);
  Lease lease = reserve(sized("a", 100))->lease;
  service.reset();
  lease.reset();
}

// selection.md d.2: initial x elapsed / expected is subtracted.
TEST_F(Reservation, ModelledPrefillMeltsAwayByItself) {
  std::uint64_t told_cached = 0;
  prefill_duration = [&](WorkerRank rank, std::uint64_t effective,
                         std::uint64_t cached) -> std::optional<std::chrono::nanoseconds> {
    told_cached = cached;
    if (rank.worker == 2) return std::nullopt;
    return std::chrono::milliseconds(effective);
  };
  start();
  add_workers(2);
  view.set({1, 0}, 2);
  book(pinned(request("a", hashed({1, 2, 3, 4}, 100)), 1));
  EXPECT_EQ(told_cached, 32u);
  book(pinned(sized("b", 100), 2));
  EXPECT_EQ(load(1).active_prefill_tokens, 68u);
  clock.advance(std::chrono::milliseconds(34));
  EXPECT_EQ(load(1).active_prefill_tokens, 34u);
  EXPECT_EQ(load(2).active_prefill_tokens, 100u);
  service->prefill_complete({"a"});
  EXPECT_EQ(load(1).active_prefill_tokens, 0u);
}

TEST_F(Reservation, EarlyOutputBlocksApplyToTheBooking) {
  start();
  add_workers(1);
  EXPECT_EQ(*service->add_output_block({"a"}, std::nullopt), LifecycleOutcome::kRemembered);
  EXPECT_EQ(*service->add_output_block({"a"}, 0.5), LifecycleOutcome::kRemembered);
  book(request("a", hashed({1, 2})));
  // Two of the prompt and two of the output, all owned by this request alone, at a half.
  EXPECT_EQ(load(1).active_decode_blocks, 2u);
  service->free_reservation({"a"});
  EXPECT_EQ(*service->add_output_block({"a"}, std::nullopt), LifecycleOutcome::kAlreadyDone);
  EXPECT_EQ(load(1).active_decode_blocks, 0u);
}

// A free is remembered for its full time, however long before it other calls for the id came.
TEST_F(Reservation, AFreeIsRememberedFromTheFreeOn) {
  start();
  add_workers(1);
  service->prefill_complete({"a"});
  clock.advance(seconds(119));
  EXPECT_EQ(*service->free_reservation({"a"}), LifecycleOutcome::kRemembered);
  clock.advance(seconds(2));
  EXPECT_EQ(reserve(sized("a", 100)).error().code, SelectionErrorCode::kFinished);
  clock.advance(seconds(120));
  EXPECT_TRUE(reserve(sized("a", 100)));
}

TEST_F(Reservation, AStrideSharesWholeGroupsOnly) {
  SelectorConfig config;
  config.active_sequence_stride = 4;
  start(config);
  add_workers(1);
  const std::vector<std::uint64_t> ten{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<std::uint64_t> other{1, 2, 3, 4, 5, 6, 70, 80};
  book(request("a", hashed(ten)));
  expect_load(1, 160, 10, 1);
  // It shares the group 1-4; of 5-8 only a part, which counts as new.
  const auto potential = service->potential_loads(request("q", hashed(other)));
  EXPECT_EQ(potential->front().potential_decode_blocks, 14u);
  book(request("b", hashed(other)));
  EXPECT_EQ(load(1).active_decode_blocks, 14u);
  service->free_reservation({"a"});
  EXPECT_EQ(load(1).active_decode_blocks, 8u);
}

}  // namespace
}  // namespace handoff::epp
