#include "epp/selection/index_overlap_source.hpp"

#include <numeric>

#include "epp/kv_index/block_hash.hpp"
#include "tests/unit/epp/selection/selection_fixture.hpp"

namespace handoff::epp {
namespace {

using test::seconds;

// Records who is followed; events are put into the index by the test.
struct FollowLog {
  std::map<WorkerRank, KvSubscription> followed;
  std::string refusal;
};

class HandSubscriptions final : public KvEventSubscriptions {
 public:
  explicit HandSubscriptions(FollowLog& log) : log_(log) {}
  std::string subscribe(const KvSubscription& subscription) override {
    if (log_.refusal.empty()) {
      EXPECT_TRUE(log_.followed.emplace(subscription.rank, subscription).second);
    }
    return log_.refusal;
  }
  void unsubscribe(WorkerRank rank) override { EXPECT_EQ(log_.followed.erase(rank), 1u); }

 private:
  FollowLog& log_;
};

// The service over a real block index, with real hashes.
class RealIndex : public test::SelectionFixture {
 protected:
  void TearDown() override { service.reset(); }  // before the log it writes to

  void start_real(SelectorConfig config) {
    SelectionEnvironment environment;
    environment.clock = [this] { return clock.now(); };
    environment.random = [this] { return ++random_calls; };
    BlockIndexOptions options;
    options.max_blocks = 1 << 16;
    environment.overlap_source = index_overlap_sources(config, options, [this](BlockIndex& made) {
      index = &made;
      return std::make_unique<HandSubscriptions>(subscriptions);
    });
    service = std::move(*SelectionService::create(std::move(config), std::move(environment)));
  }

  static std::vector<std::uint32_t> tokens(std::uint32_t first, std::size_t count) {
    std::vector<std::uint32_t> made(count);
    std::iota(made.begin(), made.end(), first);
    return made;
  }
  SelectRequest prompt(std::string id, const std::vector<std::uint32_t>& ids) {
    TokenPrompt made;
    made.token_ids = ids;
    return request(std::move(id), made);
  }
  // As an engine would announce it.
  void stored(WorkerRank rank, Tier tier, const std::vector<std::uint32_t>& ids) {
    RequestHashes hashes;
    hash_request(ids, test::kBlockSize, {}, hashes);
    std::vector<std::uint64_t> engine;
    for (const auto hash : hashes.sequence) engine.push_back(hash + 1);
    index->apply_stored(rank, tier, {std::nullopt, engine, hashes.local});
  }

  FollowLog subscriptions;
  BlockIndex* index = nullptr;
};

TEST_F(RealIndex, EventsOfAWorkerDrawItsPrefixesToIt) {
  start_real({});
  add_workers(4);
  const auto ids = tokens(1, 100);
  stored({3, 0}, Tier::device, tokens(1, 64));
  stored({2, 0}, Tier::host, tokens(1, 64));
  const auto chosen = ask(prompt("a", ids));
  EXPECT_EQ(chosen->facts.rank.worker, 3u);
  EXPECT_EQ(chosen->facts.overlap.device, 64u);
  EXPECT_EQ(chosen->facts.effective_prefill_tokens, 36u);
  const auto host = ask(pinned(prompt("a", ids), 2));
  EXPECT_EQ(host->facts.overlap.device, 0u);
  EXPECT_EQ(host->facts.overlap.host, 64u);
  EXPECT_EQ(host->facts.effective_prefill_tokens, 52u);
  EXPECT_EQ(ask(prompt("a", tokens(2, 100)))->facts.overlap.disk, 0u);
}

TEST_F(RealIndex, RanksAreFollowedAtTheirOwnAddresses) {
  start_real({});
  WorkerSpec parallel = spec(1);
  parallel.data_parallel_start_rank = 2;
  parallel.data_parallel_size = 2;
  parallel.kv_events_endpoint = "tcp://host:5557";
  parallel.replay_endpoint = "tcp://host:6000";
  ASSERT_TRUE(service->upsert_worker(parallel));
  ASSERT_EQ(subscriptions.followed.size(), 2u);
  const KvSubscription wanted{{1, 3}, "tcp://host:5560", "tcp://host:6003", 16, false, 2, 2};
  EXPECT_EQ((subscriptions.followed.at({1, 3})), wanted);
  // The same declaration again changes nothing.
  stored({1, 2}, Tier::device, tokens(1, 64));
  ASSERT_TRUE(service->upsert_worker(parallel));
  EXPECT_EQ(ask(prompt("a", tokens(1, 64)))->facts.rank.rank, 2u);
  EXPECT_EQ(ask(prompt("a", tokens(1, 64)))->facts.overlap.device, 64u);
  // A new publisher: what the old one said is forgotten.
  parallel.kv_events_endpoint = "tcp://other:5557";
  ASSERT_TRUE(service->upsert_worker(parallel));
  EXPECT_EQ(subscriptions.followed.at({1, 2}).events_endpoint, "tcp://other:5559");
  EXPECT_EQ(ask(prompt("a", tokens(1, 64)))->facts.overlap.device, 0u);
  ASSERT_TRUE(service->delete_worker(1));
  EXPECT_TRUE(subscriptions.followed.empty());
}

// Tables are made for what the followed workers can hold.
TEST_F(RealIndex, HasRoomForWhatItsWorkersCanHold) {
  start_real({});
  WorkerSpec worker = spec(1);
  worker.total_kv_blocks = 20'000;
  ASSERT_TRUE(service->upsert_worker(worker));
  const std::size_t one = index->stats().table_bytes;
  EXPECT_GE(one, 20'000u * 32);
  worker.worker_id = 2;
  ASSERT_TRUE(service->upsert_worker(worker));
  const std::size_t two = index->stats().table_bytes;
  EXPECT_GE(two, 40'000u * 32);
  ASSERT_TRUE(service->upsert_worker(worker)) << "said again";
  EXPECT_EQ(index->stats().table_bytes, two);
  worker.worker_id = 3;
  worker.total_kv_blocks = std::uint64_t{1} << 60;
  ASSERT_TRUE(service->upsert_worker(worker));
  EXPECT_LE(index->stats().table_bytes, (1u << 16) * 48) << "no more than the index may hold";
  worker.worker_id = 4;
  worker.kv_events = false;
  ASSERT_TRUE(service->upsert_worker(worker));
  for (WorkerId id = 1; id <= 3; ++id) ASSERT_TRUE(service->delete_worker(id));
  EXPECT_EQ(index->stats().ranks, 1u) << "the index goes with its last worker";
}

TEST_F(RealIndex, AnAddressThatCannotBeFollowedIsToldAndServedByLoad) {
  start_real({});
  subscriptions.refusal = "no such transport";
  add_workers(1);
  EXPECT_EQ(service->kv_problems(), std::vector<std::string>{"worker 1 rank 0: no such transport"});
  EXPECT_TRUE(ask(prompt("a", tokens(1, 64))));
  ASSERT_TRUE(service->delete_worker(1));
  EXPECT_TRUE(service->kv_problems().empty());
}

// Whatever says that the worker is there (its probes do) is another try.
TEST_F(RealIndex, AnAddressThatCouldNotBeFollowedIsTriedAgain) {
  start_real(SelectorConfig{});
  subscriptions.refusal = "no such host";
  WorkerSpec made = spec(1);
  made.kv_events_endpoint = "tcp://host:5557";
  ASSERT_TRUE(service->upsert_worker(made));
  ASSERT_EQ(service->kv_problems().size(), 1u);
  ASSERT_TRUE(service->mark_worker(1, WorkerCondition::kServing));
  EXPECT_EQ(service->kv_problems().size(), 1u);
  subscriptions.refusal.clear();
  ASSERT_TRUE(service->mark_worker(1, WorkerCondition::kServing));
  EXPECT_TRUE(service->kv_problems().empty());
  EXPECT_EQ(subscriptions.followed.size(), 1u);
  ASSERT_TRUE(service->mark_worker(1, WorkerCondition::kServing));
  EXPECT_EQ(subscriptions.followed.size(), 1u) << "once followed, it is left alone";
}

TEST_F(RealIndex, AWorkerThatReturnsHoldsNothing) {
  start_real({});
  add_workers(2);
  stored({1, 0}, Tier::device, tokens(1, 64));
  ASSERT_TRUE(service->delete_worker(1));
  ASSERT_TRUE(service->upsert_worker(spec(1)));
  EXPECT_EQ(ask(pinned(prompt("a", tokens(1, 64)), 1))->facts.overlap.device, 0u);
}

TEST_F(RealIndex, BookingsTeachAboutWorkersWithoutEvents) {
  start_real({});
  for (WorkerId id = 1; id <= 4; ++id) {
    WorkerSpec quiet = spec(id);
    quiet.kv_events = false;
    ASSERT_TRUE(service->upsert_worker(quiet));
  }
  EXPECT_TRUE(subscriptions.followed.empty());
  const auto ids = tokens(1, 64);
  EXPECT_EQ(ask(prompt("q", ids))->facts.overlap.device, 0u);
  EXPECT_EQ(ask(prompt("q", ids))->facts.overlap.device, 0u);
  const auto home = book(prompt("a", ids)).facts.rank;
  service->free_reservation({"a"});
  const auto again = ask(prompt("b", ids));
  EXPECT_EQ(again->facts.rank, home);
  EXPECT_EQ(again->facts.overlap.device, 64u);
  // Lives at least its time, and at most a quarter longer.
  clock.advance(seconds(151));
  EXPECT_EQ(ask(prompt("c", ids))->facts.overlap.device, 0u);
}

TEST_F(RealIndex, WithoutEventsAndPredictionsItIsLoadOnly) {
  SelectorConfig config;
  config.use_kv_events = false;
  config.router_ttl = seconds(0);
  start_real(config);
  add_workers(2);
  EXPECT_TRUE(subscriptions.followed.empty());
  book(prompt("a", tokens(1, 64)));
  service->free_reservation({"a"});
  EXPECT_EQ(ask(prompt("b", tokens(1, 64)))->facts.overlap.device, 0u);
}

// A hint names the source with the longest device prefix, in its engine's own hashes from the first block on,
// and only where it has more than the chosen worker.
TEST_F(RealIndex, BookingsSayFromWhomToFetch) {
  SelectorConfig config;
  config.kv_fetch_hints = true;
  start_real(config);
  for (WorkerId id = 1; id <= 4; ++id) {
    WorkerSpec worker = spec(id);
    if (id != 4) worker.router_hint_worker_type = "vllm";
    if (id != 1)
      worker.router_hint_source_control_endpoints = {{0, "tcp://10.0.0." + std::to_string(id) + ":9"}};
    ASSERT_TRUE(service->upsert_worker(worker));
  }
  const auto ids = tokens(1, 5 * test::kBlockSize);
  const auto part = tokens(1, 3 * test::kBlockSize);
  stored({2, 0}, Tier::device, tokens(1, 2 * test::kBlockSize));
  stored({3, 0}, Tier::device, part);
  stored({4, 0}, Tier::device, ids);  // of another kind
  const auto booked = book(pinned(prompt("a", ids), 1));
  ASSERT_NE(booked.kv_hint, nullptr);
  EXPECT_EQ(booked.kv_hint->source, (WorkerRank{3, 0}));
  EXPECT_EQ(booked.kv_hint->source_control_endpoint, "tcp://10.0.0.3:9");
  std::vector<std::uint64_t> engine;
  for (const auto hash : hash_request(part, test::kBlockSize)) engine.push_back(hash + 1);
  EXPECT_EQ(booked.kv_hint->block_hashes, engine);
  EXPECT_EQ(KvFetchHint::kActionType, "kv.fetch");

  EXPECT_NE(book(pinned(prompt("a", ids), 1)).kv_hint, nullptr) << "a repeat has one, too";

  // The best source itself, one that has as much, one that takes no hints, and a choice without a booking.
  EXPECT_EQ(book(pinned(prompt("b", ids), 3)).kv_hint, nullptr);
  stored({1, 0}, Tier::host, part);
  EXPECT_EQ(book(pinned(prompt("c", ids), 1)).kv_hint, nullptr);
  EXPECT_EQ(book(pinned(prompt("d", ids), 4)).kv_hint, nullptr);
  EXPECT_EQ(ask(pinned(prompt("e", ids), 2))->kv_hint, nullptr);
  EXPECT_NE(book(pinned(prompt("f", ids), 2)).kv_hint, nullptr);
  // What left the source's device is not promised.
  index->apply_removed({3, 0}, Tier::device, engine);
  EXPECT_EQ(book(pinned(prompt("g", ids), 2)).kv_hint, nullptr);
}

TEST_F(RealIndex, HintsAreOffByDefault) {
  start_real(SelectorConfig{});
  for (WorkerId id = 1; id <= 2; ++id) {
    WorkerSpec worker = spec(id);
    worker.router_hint_worker_type = "vllm";
    worker.router_hint_source_control_endpoints = {{0, "tcp://h:9"}};
    ASSERT_TRUE(service->upsert_worker(worker));
  }
  const auto ids = tokens(1, 32);
  stored({2, 0}, Tier::device, ids);
  EXPECT_EQ(book(pinned(prompt("a", ids), 1)).kv_hint, nullptr);
}

}  // namespace
}  // namespace handoff::epp
