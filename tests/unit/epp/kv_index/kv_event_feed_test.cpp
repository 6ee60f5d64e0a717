#include "epp/kv_index/kv_event_feed.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/epp/kv_index/fake_kv_publisher.hpp"
#include "tests/unit/epp/kv_index/index_fixture.hpp"
#include "tests/unit/epp/kv_index/kv_event_writer.hpp"

namespace handoff::epp {
namespace {

using namespace test;

constexpr WorkerRank kRank{7, 0};
constexpr auto kMustNotExpire = std::chrono::seconds(30);

// Over real sockets. Nothing here waits for a time; it waits for what must happen.
class KvEventFeedTest : public testing::Test {
 protected:
  KvEventFeedTest() { index_.add_rank(kRank); }

  KvFeedOptions options_for(const FakeKvPublisher& publisher) const {
    KvFeedOptions options;
    options.applier.rank = kRank;
    options.applier.block_size = 4;
    options.events_endpoint = publisher.events_endpoint();
    options.replay_endpoint = publisher.replay_endpoint();
    return options;
  }

  template <typename Condition>
  static bool eventually(Condition&& condition) {
    const auto end = std::chrono::steady_clock::now() + kMustNotExpire;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // One block of a prompt of its own, so that each batch shows on its own.
  static std::vector<std::uint32_t> tokens_of(std::uint32_t n) { return {n, n, n, n}; }
  static Payload block(std::uint32_t n, Generation generation = Generation::vllm_2026_06) {
    Stored event;
    event.hashes = {1000 + n};
    event.tokens = tokens_of(n);
    return batch({stored_event(generation, event)});
  }
  bool holds(std::uint32_t n) const {
    return device_depth(index_, hash_request(tokens_of(n), 4), kRank) == 1;
  }

  BlockIndex index_;
  std::string error_;
};

TEST_F(KvEventFeedTest, FollowsAPublisherOfEveryGeneration) {
  for (const Generation generation : kGenerations) {
    SCOPED_TRACE(static_cast<int>(generation));
    FakeKvPublisher::Options options;
    options.topic = is_sglang(generation) ? "" : "kv@10.0.0.1:8000@model";
    options.replays_topic = generation >= Generation::vllm_2026_06 && !is_sglang(generation);
    FakeKvPublisher publisher(options);
    publisher.publish(block(1, generation));  // before anybody listens: only a replay brings it
    KvFeedPool pool(index_, 1);
    const auto feed = pool.add(options_for(publisher), error_);
    ASSERT_NE(feed, nullptr) << error_;
    ASSERT_TRUE(publisher.wait_for_subscriber());
    publisher.publish(block(2, generation));
    EXPECT_TRUE(eventually([&] { return holds(1) && holds(2); }));
    publisher.lose(block(3, generation));
    publisher.publish(block(4, generation));
    EXPECT_TRUE(eventually([&] { return holds(3) && holds(4); }));
    EXPECT_TRUE(holds(1));
    EXPECT_TRUE(feed->stream_counters().is_complete);
    EXPECT_EQ(feed->stream_counters().lost_histories, 0u);
    EXPECT_EQ(feed->malformed_messages(), 0u);
    EXPECT_TRUE(pool.remove(kRank));
    index_.clear_rank(kRank);
  }
}

TEST_F(KvEventFeedTest, ClearsARankWhoseGapCannotBeReplayed) {
  FakeKvPublisher::Options options;
  options.has_replay = false;
  FakeKvPublisher publisher(options);
  KvFeedPool pool(index_, 1);
  const auto feed = pool.add(options_for(publisher), error_);
  ASSERT_TRUE(publisher.wait_for_subscriber());
  publisher.publish(block(1));
  ASSERT_TRUE(eventually([&] { return holds(1); }));
  publisher.lose(block(2));
  publisher.publish(block(3));
  ASSERT_TRUE(eventually([&] { return holds(3); }));
  EXPECT_FALSE(holds(1));
  EXPECT_EQ(feed->stream_counters().gaps, 1u);
  EXPECT_EQ(feed->stream_counters().missed_batches, 1u);
  EXPECT_FALSE(feed->stream_counters().is_complete);
}

TEST_F(KvEventFeedTest, ClearsARankWhoseGapIsOlderThanThePublishersBuffer) {
  FakeKvPublisher::Options options;
  options.buffered_batches = 2;
  FakeKvPublisher publisher(options);
  KvFeedPool pool(index_, 1);
  const auto feed = pool.add(options_for(publisher), error_);
  ASSERT_TRUE(publisher.wait_for_subscriber());
  publisher.publish(block(1));
  ASSERT_TRUE(eventually([&] { return holds(1); }));
  for (std::uint32_t n = 2; n < 6; ++n) publisher.lose(block(n));
  publisher.publish(block(6));
  ASSERT_TRUE(eventually([&] { return holds(6); }));
  EXPECT_FALSE(holds(1));
  EXPECT_TRUE(holds(5));
}

// The engine restarts at its old address: nobody has to tell us.
TEST_F(KvEventFeedTest, NoticesARestartAtTheSameAddress) {
  for (const bool has_replay : {true, false}) {
    SCOPED_TRACE(has_replay);
    FakeKvPublisher::Options options;
    options.has_replay = has_replay;
    auto publisher = std::make_unique<FakeKvPublisher>(options);
    KvFeedPool pool(index_, 1);
    const auto feed = pool.add(options_for(*publisher), error_);
    ASSERT_TRUE(publisher->wait_for_subscriber());
    publisher->publish(block(1));
    publisher->publish(block(2));
    ASSERT_TRUE(eventually([&] { return holds(1) && holds(2); }));

    options.events_endpoint = publisher->events_endpoint();
    if (has_replay) options.replay_endpoint = publisher->replay_endpoint();
    publisher.reset();
    publisher = std::make_unique<FakeKvPublisher>(options);
    publisher->lose(block(10));
    publisher->lose(block(11));
    publisher->lose(block(12));  // its numbers are beyond the old ones by the time we are back
    ASSERT_TRUE(publisher->wait_for_subscriber());
    publisher->publish(block(13));
    ASSERT_TRUE(eventually([&] { return holds(13); }));
    EXPECT_FALSE(holds(1));
    EXPECT_FALSE(holds(2));
    EXPECT_EQ(holds(10) && holds(12), has_replay);
    EXPECT_EQ(feed->stream_counters().reconnects, 1u);
    pool.remove(kRank);
    index_.clear_rank(kRank);
  }
}

TEST_F(KvEventFeedTest, GivesUpOnAReplayThatIsNotAnswered) {
  FakeKvPublisher::Options options;
  options.answers_replays = false;
  FakeKvPublisher publisher(options);
  KvFeedPool pool(index_, 1);
  KvFeedOptions feed_options = options_for(publisher);
  feed_options.stream.replay_timeout = std::chrono::milliseconds(50);  // expected to expire
  const auto feed = pool.add(feed_options, error_);
  ASSERT_TRUE(publisher.wait_for_subscriber());
  publisher.publish(block(1));
  ASSERT_TRUE(eventually([&] { return holds(1); }));
  publisher.lose(block(2));
  publisher.publish(block(3));
  ASSERT_TRUE(eventually([&] { return holds(3); }));
  EXPECT_FALSE(holds(1));
  EXPECT_GE(feed->stream_counters().failed_replays, 1u);
}

TEST_F(KvEventFeedTest, CountsMessagesThatAreNone) {
  FakeKvPublisher publisher({});
  KvFeedPool pool(index_, 1);
  const auto feed = pool.add(options_for(publisher), error_);
  ASSERT_TRUE(publisher.wait_for_subscriber());
  publisher.send_raw({Payload(3)});
  publisher.send_raw({Payload(0), Payload(7), Payload(5)});
  publisher.send_raw(std::vector<Payload>(40, Payload(8)));
  publisher.publish(pack("nonsense"));
  publisher.publish(block(1));
  EXPECT_TRUE(eventually([&] { return holds(1); }));
  EXPECT_EQ(feed->malformed_messages(), 3u);
  EXPECT_EQ(feed->applier_counters().decode_errors, 1u);
  EXPECT_EQ(feed->stream_counters().undecodable, 1u);
}

// vLLM connects when its endpoint has no wildcard.
TEST_F(KvEventFeedTest, BindsForPublishersThatDial) {
  KvFeedPool pool(index_, 1);
  KvFeedOptions options;
  options.applier.rank = kRank;
  options.applier.block_size = 4;
  options.events_endpoint = "tcp://127.0.0.1:*";
  options.binds = true;
  ASSERT_NE(pool.add(options, error_), nullptr) << error_;
  FakeKvPublisher::Options publisher_options;
  publisher_options.dials = true;
  publisher_options.has_replay = false;
  publisher_options.events_endpoint = pool.bound_endpoint(kRank);
  FakeKvPublisher publisher(publisher_options);
  ASSERT_TRUE(publisher.wait_for_subscriber());
  publisher.publish(block(1));
  EXPECT_TRUE(eventually([&] { return holds(1); }));
}

TEST_F(KvEventFeedTest, SaysWhatIsWrongWithAnEndpoint) {
  KvFeedPool pool(index_, 1);
  KvFeedOptions options;
  options.applier.rank = kRank;
  options.events_endpoint = "nonsense";
  EXPECT_EQ(pool.add(options, error_), nullptr);
  EXPECT_NE(error_.find("nonsense"), std::string::npos);
  EXPECT_EQ(pool.find(kRank), nullptr);
  EXPECT_FALSE(pool.remove(kRank));
}

TEST_F(KvEventFeedTest, KeepsManyFeedsApart) {
  constexpr std::uint32_t kFeeds = 24;
  std::vector<std::unique_ptr<FakeKvPublisher>> publishers;
  KvFeedPool pool(index_, 2);
  std::vector<std::shared_ptr<const KvEventFeed>> feeds;
  for (std::uint32_t i = 0; i < kFeeds; ++i) {
    publishers.push_back(std::make_unique<FakeKvPublisher>(FakeKvPublisher::Options{}));
    KvFeedOptions options = options_for(*publishers.back());
    options.applier.rank = {i, 0};
    index_.add_rank({i, 0});
    feeds.push_back(pool.add(options, error_));
  }
  for (auto& publisher : publishers) ASSERT_TRUE(publisher->wait_for_subscriber());
  for (std::uint32_t round = 0; round < 50; ++round) {
    for (std::uint32_t i = 0; i < kFeeds; ++i) publishers[i]->publish(block(100 * i + round));
  }
  EXPECT_TRUE(eventually([&] { return index_.stats().blocks == kFeeds * 50; }));
  for (std::uint32_t i = 0; i < kFeeds; ++i) {
    EXPECT_EQ(device_depth(index_, hash_request(tokens_of(100 * i + 49), 4), {i, 0}), 1u);
  }
}

// A feed that is taken away changes nothing any more, and may be held longer than its pool.
TEST_F(KvEventFeedTest, ARemovedFeedIsQuiet) {
  std::shared_ptr<const KvEventFeed> feed;
  {
    FakeKvPublisher publisher({});
    KvFeedPool pool(index_, 1);
    feed = pool.add(options_for(publisher), error_);
    ASSERT_TRUE(publisher.wait_for_subscriber());
    publisher.publish(block(1));
    ASSERT_TRUE(eventually([&] { return holds(1); }));
    EXPECT_EQ(pool.find(kRank), feed);
    EXPECT_TRUE(pool.remove(kRank));
    publisher.publish(block(2));
    const auto again = pool.add(options_for(publisher), error_);
    ASSERT_TRUE(eventually([&] { return holds(2); }));  // by the replay of the new feed
    EXPECT_EQ(feed->stream_counters().batches, 1u);
    feed = again;
  }
  EXPECT_EQ(feed->rank(), kRank);
  EXPECT_GE(feed->stream_counters().batches, 1u);
}

// Feeds come and go while another one's thread is held up in the middle of a message: nobody waits for it.
TEST_F(KvEventFeedTest, AddsAndRemovesWithoutWaitingForTheThread) {
  FakeKvPublisher publisher({});
  std::mutex mutex;
  std::condition_variable changed;
  bool is_held = false;
  std::atomic<bool> holds_up{false};
  const auto clock = [&] {
    if (holds_up) {
      std::unique_lock lock(mutex);
      is_held = true;
      changed.notify_all();
      changed.wait(lock, [&] { return !holds_up; });
    }
    return std::chrono::steady_clock::now();
  };
  KvFeedPool pool(index_, 1, clock);
  pool.add(options_for(publisher), error_);
  ASSERT_TRUE(publisher.wait_for_subscriber());
  publisher.publish(block(1));
  ASSERT_TRUE(eventually([&] { return holds(1); }));
  holds_up = true;
  publisher.publish(block(2));
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, kMustNotExpire, [&] { return is_held; }));
  }
  for (std::uint32_t i = 100; i < 120; ++i) {
    KvFeedOptions options = options_for(publisher);
    options.applier.rank = {i, 0};
    ASSERT_NE(pool.add(options, error_), nullptr) << error_;
    if (i % 2 == 0) {
      EXPECT_TRUE(pool.remove({i, 0}));
    }
  }
  EXPECT_FALSE(holds(2)) << "the thread is still held up";
  {
    const std::lock_guard lock(mutex);
    holds_up = false;
  }
  changed.notify_all();
  EXPECT_TRUE(eventually([&] { return holds(2); }));
}

// An idle feed is not looked at: the clock is asked once per feed that has something, and for the wait.
TEST_F(KvEventFeedTest, LooksOnlyAtFeedsThatHaveSomething) {
  constexpr std::uint32_t kIdle = 100;
  FakeKvPublisher publisher({});
  FakeKvPublisher::Options quiet_options;
  quiet_options.has_replay = false;
  FakeKvPublisher quiet(quiet_options);
  std::atomic<std::uint64_t> looks{0};
  KvFeedPool pool(index_, 1, [&] {
    ++looks;
    return std::chrono::steady_clock::now();
  });
  std::vector<std::shared_ptr<const KvEventFeed>> feeds;
  for (std::uint32_t i = 0; i < kIdle; ++i) {
    KvFeedOptions options = options_for(quiet);
    options.applier.rank = {100 + i, 0};
    feeds.push_back(pool.add(options, error_));
  }
  ASSERT_TRUE(quiet.wait_for_subscriber());
  pool.add(options_for(publisher), error_);
  ASSERT_TRUE(publisher.wait_for_subscriber());
  publisher.publish(block(0));
  ASSERT_TRUE(eventually([&] { return holds(0); }));
  const std::uint64_t before = looks;
  constexpr std::uint32_t kBatches = 50;
  for (std::uint32_t n = 1; n <= kBatches; ++n) {
    publisher.publish(block(n));
    ASSERT_TRUE(eventually([&] { return holds(n); }));
  }
  // A batch is one turn of its feed, or two, which read the clock a few times; with all feeds looked at, each
  // turn would read it a hundred times.
  EXPECT_LT(looks - before, kBatches * kIdle / 2);
}

}  // namespace
}  // namespace handoff::epp
