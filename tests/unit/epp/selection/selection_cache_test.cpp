#include "epp/selection/selection_cache.hpp"

#include "tests/unit/epp/selection/selection_fixture.hpp"

namespace handoff::epp {
namespace {

using test::seconds;

SelectionCache::Entry entry(std::string id, std::size_t hashes) {
  SelectionCache::Entry made;
  made.request.request.selection_id = std::move(id);
  made.request.sequence_hashes.resize(hashes);
  return made;
}

TEST(SelectionCacheBounds, TheOldestGoesFirst) {
  SelectionCache cache({.ttl = seconds(120), .max_entries = 2, .max_bytes = 1 << 20});
  const SteadyTime start{};
  cache.put(entry("a", 1), start);
  cache.put(entry("b", 1), start);
  cache.put(entry("c", 1), start);
  EXPECT_EQ(cache.find("a", start), nullptr);
  EXPECT_NE(cache.find("b", start), nullptr);
  // The same id again is the newest.
  cache.put(entry("b", 5), start);
  cache.put(entry("d", 1), start);
  EXPECT_EQ(cache.find("c", start), nullptr);
  ASSERT_NE(cache.find("b", start), nullptr);
  EXPECT_EQ(cache.find("b", start)->request.sequence_hashes.size(), 5u);
  cache.erase("b");
  cache.erase("d");
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST(SelectionCacheBounds, BoundsTheBytes) {
  SelectionCache cache({.ttl = seconds(120), .max_entries = 100, .max_bytes = 10'000});
  const SteadyTime start{};
  cache.put(entry("large", 2000), start);  // larger than everything allowed
  EXPECT_EQ(cache.size(), 0u);
  for (int i = 0; i < 50; ++i) cache.put(entry(std::to_string(i), 100), start);
  EXPECT_LE(cache.bytes(), 10'000u);
  EXPECT_GE(cache.size(), 2u);
  EXPECT_NE(cache.find("49", start), nullptr);
}

TEST(SelectionCacheBounds, ForgetsAfterItsTime) {
  SelectionCache cache({.ttl = seconds(120), .max_entries = 4096, .max_bytes = 1 << 20});
  const SteadyTime start{};
  cache.put(entry("a", 1), start);
  EXPECT_NE(cache.find("a", start + seconds(119)), nullptr);
  EXPECT_EQ(cache.find("a", start + seconds(120)), nullptr);
  cache.put(entry("b", 1), start + seconds(120));
  EXPECT_EQ(cache.size(), 1u);
}

class RememberedSelection : public test::SelectionFixture {
 protected:
  static ReservationRequest only_id(std::string id) {
    ReservationRequest made;
    made.selection_id = std::move(id);
    return made;
  }
};

TEST_F(RememberedSelection, IsBookedExactlyAsItWasChosen) {
  start();
  add_workers(2);
  view.set({2, 0}, 2);
  const auto chosen = ask(request("a", hashed({1, 2, 3}, 50)));
  EXPECT_EQ(chosen->facts.rank.worker, 2u);
  expect_load(2, 0, 0, 0);
  EXPECT_EQ(service->stats().remembered_selections, 1u);
  // What changed meanwhile does not matter, nor does any other field.
  view.set({2, 0}, 0);
  ReservationRequest wanted = only_id("a");
  wanted.prompt = hashed({7, 8, 9, 10});
  wanted.effective_prefill_tokens = 1;
  const auto booked = service->create_reservation(wanted);
  ASSERT_TRUE(booked) << booked.error().message;
  EXPECT_EQ(booked->facts.effective_prefill_tokens, 18u);
  EXPECT_TRUE(booked->booked);
  expect_load(2, 18, 3, 1);
  // It is used up; the id is booked now, so the same call is the same booking.
  EXPECT_EQ(service->stats().remembered_selections, 0u);
  EXPECT_TRUE(service->create_reservation(only_id("a"))->repeated);
  expect_load(2, 18, 3, 1);
  service->free_reservation({"a"});
  EXPECT_EQ(service->create_reservation(only_id("a")).error().code, SelectionErrorCode::kNotFound);
}

TEST_F(RememberedSelection, NeedsTheCallersIdAndItsTime) {
  start();
  add_workers(1);
  EXPECT_EQ(service->create_reservation(only_id("never")).error().code, SelectionErrorCode::kNotFound);
  EXPECT_EQ(service->create_reservation(only_id("")).error().code, SelectionErrorCode::kBadRequest);
  const auto made_up = ask(sized("", 16));
  EXPECT_EQ(service->create_reservation(only_id(made_up->selection_id)).error().code,
            SelectionErrorCode::kNotFound);
  ask(sized("late", 16));
  clock.advance(seconds(120));
  EXPECT_EQ(service->create_reservation(only_id("late")).error().code, SelectionErrorCode::kNotFound);
}

TEST_F(RememberedSelection, AFailureKeepsItForAnotherTry) {
  start();
  add_workers(1);
  ask(sized("a", 16));
  service->mark_worker(1, WorkerCondition::kUnavailable);
  EXPECT_EQ(service->create_reservation(only_id("a")).error().code, SelectionErrorCode::kNotFound);
  service->mark_worker(1, WorkerCondition::kServing);
  EXPECT_TRUE(service->create_reservation(only_id("a")));
}

TEST_F(RememberedSelection, ABookingByAnotherWayReplacesIt) {
  start();
  add_workers(2);
  const auto chosen = ask(sized("a", 16));
  ReservationRequest explicitly = only_id("a");
  explicitly.worker = WorkerRank{3 - chosen->facts.rank.worker, 0};
  explicitly.prompt = SizedPrompt{16};
  EXPECT_TRUE(service->create_reservation(explicitly));
  EXPECT_EQ(service->stats().remembered_selections, 0u);
  ask(sized("b", 16));
  book(sized("b", 16));
  EXPECT_EQ(service->stats().remembered_selections, 0u);
  // The last of two selections counts.
  view.set({1, 0}, 1);
  ask(request("c", hashed({1, 2})));
  ask(request("c", hashed({1, 2, 3})));
  EXPECT_EQ(service->create_reservation(only_id("c"))->facts.isl_tokens, 48u);
}

TEST_F(RememberedSelection, CanBeSwitchedOff) {
  SelectorConfig config;
  config.selection_cache.max_entries = 0;
  start(config);
  add_workers(1);
  ask(sized("a", 16));
  EXPECT_EQ(service->create_reservation(only_id("a")).error().code, SelectionErrorCode::kNotFound);
}

}  // namespace
}  // namespace handoff::epp
