#include <thread>

#include "epp/selection/index_overlap_source.hpp"
#include "epp/selection/kv_feed_subscriptions.hpp"
#include "tests/unit/epp/kv_index/fake_kv_publisher.hpp"
#include "tests/unit/epp/selection/selection_fixture.hpp"

namespace handoff::epp {
namespace {

using test::FakeKvPublisher;

constexpr auto kMustNotExpire = std::chrono::seconds(30);

// The service with everything real: ZMQ publishers, feeds, index, choice. Waits for what must happen, never
// for a time.
class KvFeedService : public test::SelectionFixture {
 protected:
  KvFeedService() {
    SelectionEnvironment environment = system_environment();
    const SelectorConfig config;
    BlockIndexOptions options;
    options.max_blocks = 1 << 16;
    environment.overlap_source =
        index_overlap_sources(config, options, kv_feed_subscriptions(1, environment.clock));
    service = std::move(*SelectionService::create(config, std::move(environment)));
  }
  ~KvFeedService() override { service.reset(); }

  WorkerSpec follower(WorkerId id, const FakeKvPublisher& publisher) const {
    WorkerSpec made = spec(id);
    made.block_size = 4;
    made.kv_events_endpoint = publisher.events_endpoint();
    made.replay_endpoint = publisher.replay_endpoint();
    return made;
  }

  static test::Payload stored(std::uint64_t hash, std::vector<std::uint32_t> tokens) {
    test::Stored event;
    event.hashes = {hash};
    event.tokens = std::move(tokens);
    return test::batch({test::stored_event(test::Generation::vllm_2026_06, event)});
  }

  std::uint64_t overlap(WorkerId worker, const std::vector<std::uint32_t>& tokens) {
    TokenPrompt prompt;
    prompt.token_ids = tokens;
    return ask(pinned(request("q", prompt), worker))->facts.overlap.device;
  }

  template <typename Condition>
  static bool eventually(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kMustNotExpire;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
};

TEST_F(KvFeedService, FollowsItsWorkersEventsAndForgetsThemWithTheWorker) {
  const std::vector<std::uint32_t> first{1, 2, 3, 4};
  const std::vector<std::uint32_t> second{5, 6, 7, 8};
  FakeKvPublisher one{FakeKvPublisher::Options{}};
  FakeKvPublisher two{FakeKvPublisher::Options{}};
  one.publish(stored(101, first));  // before anybody listens: the replay brings it
  ASSERT_EQ(service->upsert_worker(follower(1, one))->lifecycle, WorkerLifecycle::kSchedulable);
  ASSERT_EQ(service->upsert_worker(follower(2, two))->lifecycle, WorkerLifecycle::kSchedulable);
  ASSERT_TRUE(one.wait_for_subscriber());
  ASSERT_TRUE(two.wait_for_subscriber());
  two.publish(stored(201, second));
  // Any further batch shows that the first one was missed.
  one.publish(stored(102, {9, 9, 9, 9}));
  EXPECT_TRUE(eventually([&] {
    const auto feeds = service->kv_status();
    const bool all_came = feeds.size() == 1 && feeds[0].index.blocks == 3 && feeds[0].ranks.size() == 2 &&
                          feeds[0].ranks[0].next_sequence == 2;
    return all_came && overlap(1, first) == 4 && overlap(2, second) == 4;
  }));
  EXPECT_EQ(overlap(2, first), 0u);

  TokenPrompt prompt;
  prompt.token_ids = second;
  EXPECT_EQ(ask(request("a", prompt))->facts.rank.worker, 2u);
  EXPECT_TRUE(service->kv_problems().empty());

  const auto status = service->kv_status();
  ASSERT_EQ(status.size(), 1u);
  EXPECT_EQ(status[0].partition.model_name, "default");
  EXPECT_EQ(status[0].index.blocks, 3u);
  ASSERT_EQ(status[0].ranks.size(), 2u);
  EXPECT_EQ(status[0].ranks[0].rank, (WorkerRank{1, 0}));
  EXPECT_EQ(status[0].ranks[0].next_sequence, 2u);
  EXPECT_TRUE(status[0].ranks[0].is_complete);
  EXPECT_GE(status[0].ranks[0].replays, 1u);
  EXPECT_EQ(status[0].ranks[0].decode_errors, 0u);
  EXPECT_NE(status[0].ranks[0].lag_seconds, 0.0);

  ASSERT_TRUE(service->delete_worker(1));
  WorkerSpec returned = spec(1);
  returned.block_size = 4;
  returned.kv_events = false;
  ASSERT_TRUE(service->upsert_worker(returned));
  EXPECT_EQ(overlap(1, first), 0u);
}

TEST_F(KvFeedService, TellsWhichAddressIsWrong) {
  WorkerSpec wrong = spec(1);
  wrong.kv_events_endpoints[0] = "carrier-pigeon://roof";
  ASSERT_EQ(service->upsert_worker(wrong)->lifecycle, WorkerLifecycle::kSchedulable);
  ASSERT_EQ(service->kv_problems().size(), 1u);
  EXPECT_NE(service->kv_problems().front().find("worker 1 rank 0"), std::string::npos);
}

}  // namespace
}  // namespace handoff::epp
