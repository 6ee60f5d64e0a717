#include <atomic>
#include <barrier>
#include <thread>

#include "tests/unit/epp/selection/selection_fixture.hpp"
#include "tests/unit/epp/selection/test_seed.hpp"

namespace handoff::epp {
namespace {

// Several threads on one service at once; meant for ThreadSanitizer, and for the invariants that must hold
// when all is over: every selection answered once, every load back at zero.
class Contention : public testing::Test {
 protected:
  static constexpr int kThreads = 4;

  void start(SelectorConfig config) {
    SelectionEnvironment environment = system_environment();
    environment.clock = [this] { return SteadyTime(std::chrono::nanoseconds(ticks_.fetch_add(1000))); };
    auto created = SelectionService::create(std::move(config), std::move(environment));
    ASSERT_TRUE(created);
    service = std::move(*created);
  }

  static WorkerSpec spec(WorkerId id, std::uint32_t ranks = 1) {
    WorkerSpec made;
    made.worker_id = id;
    made.endpoint = "host:1";
    made.block_size = 16;
    made.kv_events = false;
    made.max_num_batched_tokens = 1000;
    made.data_parallel_size = ranks;
    return made;
  }

  template <typename Body>
  void on_all_threads(Body body) {
    const std::uint64_t seed = test::test_seed();
    std::barrier together(kThreads);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        test::Random random(seed + static_cast<std::uint64_t>(thread));
        together.arrive_and_wait();
        body(thread, random);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  void expect_no_load() {
    for (const auto& partition : service->loads()) {
      EXPECT_EQ(partition.pending_count, 0u);
      EXPECT_EQ(partition.pending_isl_tokens, 0u);
      for (const auto& row : partition.loads) {
        EXPECT_EQ(row.active_prefill_tokens, 0u);
        EXPECT_EQ(row.active_decode_blocks, 0u);
        EXPECT_EQ(row.active_requests, 0u);
      }
    }
    EXPECT_EQ(service->stats().live_reservations, 0u);
    EXPECT_EQ(service->stats().tracked_blocks, 0u);
  }

  static SelectRequest request(std::string id, test::Random& random) {
    SelectRequest made;
    made.selection_id = std::move(id);
    HashedPrompt prompt;
    std::uint64_t chain = 0;
    for (std::uint64_t i = 1 + random.below(20); i > 0; --i) {
      chain = chain * 31 + 1 + random.below(2);
      prompt.sequence_hashes.push_back(chain);
    }
    prompt.isl_tokens = prompt.sequence_hashes.size() * 16;
    made.prompt = std::move(prompt);
    return made;
  }

  std::atomic<std::int64_t> ticks_{1};
  std::unique_ptr<SelectionService> service;
};

TEST_F(Contention, BookAndFreeWhileWorkersComeAndGo) {
  start(SelectorConfig{});
  for (WorkerId id = 1; id <= 4; ++id) ASSERT_TRUE(service->upsert_worker(spec(id, 2)));
  std::atomic<std::uint64_t> answers{0};
  constexpr int kRequests = 1500;
  on_all_threads([&](int thread, test::Random& random) {
    for (int i = 0; i < kRequests; ++i) {
      const std::string id = std::to_string(thread) + "-" + std::to_string(i);
      Lease lease;
      service->select_and_reserve(request(id, random), [&](Result<Selection> result) {
        ++answers;
        if (result) lease = result->lease;
      });
      service->output_progress({id}, random.below(100));
      service->prefill_complete({id});
      if (random.one_in(50)) {
        const WorkerId worker = 1 + random.below(4);
        service->upsert_worker(spec(worker, 1 + static_cast<std::uint32_t>(random.below(2))));
      }
      if (random.one_in(100)) service->delete_worker(1 + random.below(4));
      if (random.one_in(100)) service->mark_worker(1 + random.below(4), WorkerCondition::kDraining);
      if (random.one_in(20)) service->maintain();
      if (random.one_in(20)) service->loads();
      if (random.one_in(20)) service->ready();
      service->free_reservation({id});
    }
  });
  EXPECT_EQ(answers, static_cast<std::uint64_t>(kThreads) * kRequests);
  expect_no_load();
}

// All threads use the same few ids: one booking per id at a time, each free applied once.
// A selection claims its id, fails, and gives the id back, while the free of it is on its way.
TEST_F(Contention, AFreeIsNotLostToASelectionThatFails) {
  start(SelectorConfig{});
  ASSERT_TRUE(service->upsert_worker(spec(1)));
  constexpr int kIds = 2000;
  std::atomic<int> failed{0};
  std::barrier each_id(kThreads);
  on_all_threads([&](int thread, test::Random& random) {
    for (int i = 0; i < kIds; ++i) {
      const std::string id = "r" + std::to_string(i);
      each_id.arrive_and_wait();
      if (thread == 0) {
        EXPECT_TRUE(service->free_reservation({id}));
        continue;
      }
      SelectRequest made = request(id, random);
      made.allowed_workers.emplace();
      service->select_and_reserve(std::move(made), [&](Result<Selection> given) {
        if (!given) failed.fetch_add(1);
      });
    }
  });
  EXPECT_EQ(failed.load(), kIds * (kThreads - 1));
  test::Random random(1);
  for (int i = 0; i < kIds; ++i) {
    service->select_and_reserve(request("r" + std::to_string(i), random), [&](Result<Selection> given) {
      ASSERT_FALSE(given) << i << " is booked, though it was freed";
      EXPECT_EQ(given.error().code, SelectionErrorCode::kFinished) << i;
    });
  }
  expect_no_load();
}

TEST_F(Contention, OneBookingPerIdHoweverManyAsk) {
  SelectorConfig config;
  config.limits.retired_id_ttl = std::chrono::seconds(0);
  start(config);
  for (WorkerId id = 1; id <= 3; ++id) ASSERT_TRUE(service->upsert_worker(spec(id)));
  std::atomic<std::int64_t> booked{0};
  std::atomic<std::int64_t> freed{0};
  on_all_threads([&](int, test::Random& random) {
    for (int i = 0; i < 3000; ++i) {
      const std::string id = "shared-" + std::to_string(random.below(3));
      if (random.one_in(2)) {
        service->select_and_reserve(request(id, random), [&](Result<Selection> result) {
          if (result && !result->repeated) ++booked;
        });
      } else if (*service->free_reservation({id}) == LifecycleOutcome::kApplied) {
        ++freed;
      }
    }
  });
  for (int i = 0; i < 3; ++i) {
    if (*service->free_reservation({"shared-" + std::to_string(i)}) == LifecycleOutcome::kApplied) ++freed;
  }
  EXPECT_EQ(booked, freed);
  expect_no_load();
}

// Many more requests than the workers take at once; some are cancelled, some freed from inside the answer.
TEST_F(Contention, WaitersAreServedOrCancelledExactlyOnce) {
  SelectorConfig config;
  config.router_queue_threshold = 0.1;
  start(config);
  for (WorkerId id = 1; id <= 2; ++id) ASSERT_TRUE(service->upsert_worker(spec(id)));
  std::atomic<std::uint64_t> served{0};
  std::atomic<std::uint64_t> cancelled{0};
  std::atomic<std::uint64_t> other{0};
  std::atomic<std::uint64_t> cancel_won{0};
  constexpr int kRequests = 1000;
  on_all_threads([&](int thread, test::Random& random) {
    std::vector<PendingSelection> pending;
    for (int i = 0; i < kRequests; ++i) {
      const std::string id = std::to_string(thread) + "-" + std::to_string(i);
      pending.push_back(service->select_and_reserve(request(id, random), [&](Result<Selection> result) {
        if (result) {
          ++served;
          service->free_reservation({result->selection_id});
        } else {
          ++(result.error().code == SelectionErrorCode::kCancelled ? cancelled : other);
        }
      }));
      if (random.one_in(2) && pending[random.below(pending.size())].cancel()) ++cancel_won;
      if (random.one_in(30)) service->maintain();
    }
  });
  EXPECT_EQ(served + cancelled, static_cast<std::uint64_t>(kThreads) * kRequests);
  EXPECT_EQ(other, 0u);
  EXPECT_EQ(cancelled, cancel_won);
  expect_no_load();
}

// No request is left behind when capacity is freed beside arrivals: the last free serves the last waiter.
TEST_F(Contention, NoWaiterIsForgotten) {
  SelectorConfig config;
  config.router_queue_threshold = 0.0;
  start(config);
  ASSERT_TRUE(service->upsert_worker(spec(1)));
  std::atomic<std::uint64_t> served{0};
  std::mutex mutex;
  std::vector<std::string> booked;
  std::vector<Lease> leases;
  constexpr int kRequests = 1500;
  on_all_threads([&](int thread, test::Random& random) {
    for (int i = 0; i < kRequests; ++i) {
      const std::string id = std::to_string(thread) + "-" + std::to_string(i);
      service->select_and_reserve(request(id, random), [&](Result<Selection> result) {
        ++served;
        const std::lock_guard lock(mutex);
        booked.push_back(result->selection_id);
        leases.push_back(result->lease);
      });
      std::string done;
      {
        const std::lock_guard lock(mutex);
        if (!booked.empty()) {
          done = booked.back();
          booked.pop_back();
        }
      }
      if (!done.empty()) service->free_reservation({done});
    }
  });
  while (!booked.empty()) {
    const std::string done = booked.back();
    booked.pop_back();
    service->free_reservation({done});
  }
  EXPECT_EQ(served, static_cast<std::uint64_t>(kThreads) * kRequests);
  expect_no_load();
}

}  // namespace
}  // namespace handoff::epp
