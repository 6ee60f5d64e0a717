// The mock's KV events, read by the Endpoint Picker's index over real sockets: whatever the encoding, the
// index must end up with exactly what the cache holds.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_index.hpp"
#include "epp/kv_index/kv_event_feed.hpp"
#include "tests/mock_engine/engine.hpp"

namespace handoff::mock {
namespace {

constexpr auto kMustNotExpire = std::chrono::seconds(60);
constexpr std::int64_t kBlockSize = 4;

struct Shape {
  const char* name;
  KvEventFormat format;
  KvHashKind hashes = KvHashKind::kInt;
  bool tells_salts = true;
  bool replays_topic = true;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

const Shape kShapes[] = {
    {"vllm_2025_04", KvEventFormat::kVllm2025April, KvHashKind::kInt, false, false},
    {"vllm_2025_09", KvEventFormat::kVllm2025September, KvHashKind::kBytes, false, false},
    {"vllm_2025_12", KvEventFormat::kVllm2025December, KvHashKind::kInt, false, false},
    {"vllm_2026_02", KvEventFormat::kVllm2026February, KvHashKind::kBytes, true, false},
    {"vllm_2026_04", KvEventFormat::kVllm2026April},
    {"vllm_2026_05", KvEventFormat::kVllm2026May},
    {"vllm_map", KvEventFormat::kVllmMap},
    {"vllm_map_bytes", KvEventFormat::kVllmMap, KvHashKind::kBytes},
    {"sglang_array", KvEventFormat::kSglangArray, KvHashKind::kInt, true, false},
    {"sglang_map", KvEventFormat::kSglangMap, KvHashKind::kInt, true, false},
};

// An engine without requests: the test plays them. Its loop runs in the test's own thread.
class Mock {
 public:
  explicit Mock(const Shape& shape, std::int64_t ranks = 1, std::int64_t blocks = 64) {
    config_.models = {"m"};
    config_.prefix_caching = config_.kv_events = true;
    config_.block_size = kBlockSize;
    config_.blocks = blocks;
    config_.data_parallel_size = ranks;
    config_.kv_replay_port = std::uint16_t{0};
    config_.kv_event_format = shape.format;
    config_.kv_hash_kind = shape.hashes;
    config_.kv_replay_topic = shape.replays_topic;
    engine_.emplace(io_, config_);
  }

  Engine& engine() { return *engine_; }

  // A request with this prompt comes and goes.
  void serve(const Tokens& prompt, const std::string& salt = {}, std::int64_t rank = 0) {
    CachedSequence sequence;
    sequence.rank = rank;
    sequence.salt = salt;
    BlockIds blocks = engine_->prefix_cache().find(prompt, sequence);
    for (const std::int64_t id : blocks) engine_->blocks().share(id);
    const auto all = (static_cast<std::int64_t>(prompt.size()) + kBlockSize - 1) / kBlockSize;
    BlockIds fresh;
    ASSERT_TRUE(engine_->blocks().try_allocate(all - static_cast<std::int64_t>(blocks.size()), fresh));
    blocks.insert(blocks.end(), fresh.begin(), fresh.end());
    engine_->prefix_cache().store(prompt, blocks, sequence);
    engine_->blocks().release(blocks);
    engine_->publish_kv_events();
    io_.poll();
  }

  std::uint32_t cached_blocks(Tokens prompt, const std::string& salt = {}, std::int64_t rank = 0) {
    prompt.push_back(0);  // one token is never found
    CachedSequence sequence;
    sequence.rank = rank;
    sequence.salt = salt;
    return static_cast<std::uint32_t>(engine_->prefix_cache().find(prompt, sequence).size());
  }

  epp::KvFeedOptions feed(std::uint64_t worker, std::uint32_t rank = 0) const {
    epp::KvFeedOptions options;
    options.applier.rank = {worker, rank};
    options.applier.first_rank = rank;
    options.applier.block_size = kBlockSize;
    const KvEventPublisher& events = *const_cast<Engine&>(*engine_).kv_events();
    options.events_endpoint = "tcp://127.0.0.1:" + std::to_string(events.port() + rank);
    options.replay_endpoint = "tcp://127.0.0.1:" + std::to_string(events.replay_port() + rank);
    return options;
  }

  template <typename Condition>
  bool eventually(Condition&& condition) {
    const auto end = std::chrono::steady_clock::now() + kMustNotExpire;
    int rounds = 0;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      io_.poll();
      // A batch without events: it shows a gap before it, also of what was sent before the subscription
      // stood.
      if (++rounds % 2000 == 0) {
        for (std::int64_t rank = 0; rank < config_.data_parallel_size; ++rank)
          engine_->kv_events()->publish_raw(rank, nlohmann::json::array());
      }
      std::this_thread::yield();
    }
    return true;
  }

 private:
  net::io_context io_{1};
  MockConfig config_;
  std::optional<Engine> engine_;
};

std::uint32_t indexed_blocks(const epp::BlockIndex& index, const Tokens& prompt, const std::string& salt,
                             epp::WorkerRank rank) {
  const std::vector<std::uint32_t> tokens(prompt.begin(), prompt.end());
  epp::HashOptions options;
  options.cache_salt = salt;
  epp::OverlapScores scores;
  index.match_prefix(epp::hash_request(tokens, kBlockSize, options), std::chrono::steady_clock::now(),
                     scores);
  const epp::RankOverlap* row = scores.find(rank);
  return row ? row->device : 0;
}

class KvEventShape : public testing::TestWithParam<Shape> {};

TEST_P(KvEventShape, IndexHoldsWhatTheCacheHolds) {
  const char* wanted = std::getenv("HANDOFF_TEST_SEED");
  const auto seed = wanted ? std::strtoull(wanted, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE("HANDOFF_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return random() % n; };

  Mock mock(GetParam());
  epp::BlockIndex index;
  const epp::WorkerRank rank{7, 0};
  index.add_rank(rank);
  epp::KvFeedPool pool(index, 1);
  std::string error;
  ASSERT_TRUE(pool.add(mock.feed(7), error)) << error;

  // A tree of prompts, much larger than the cache.
  std::vector<std::pair<Tokens, std::string>> prompts;
  for (int i = 0; i < 60; ++i) {
    Tokens prompt;
    std::string salt;
    if (!prompts.empty() && below(3) != 0) {
      const auto& [parent, parent_salt] = prompts[below(prompts.size())];
      prompt.assign(parent.begin(), parent.begin() + static_cast<std::ptrdiff_t>(below(parent.size() + 1)));
      salt = parent_salt;
    } else if (GetParam().tells_salts && below(2) == 0) {
      salt = "tenant-" + std::to_string(below(3));
    }
    const std::size_t more = 1 + below(30);
    for (std::size_t t = 0; t < more; ++t) prompt.push_back(static_cast<Token>(random() % 4'000'000'000ULL));
    prompts.emplace_back(std::move(prompt), salt);
  }
  for (int i = 0; i < 400; ++i) {
    if (below(20) == 0) mock.engine().kv_events()->lose(1);
    if (below(100) == 0) {
      mock.engine().prefix_cache().clear(true);
      mock.engine().publish_kv_events();
    }
    const auto& [prompt, salt] = prompts[below(prompts.size())];
    if (prompt.size() <= 60 * kBlockSize) mock.serve(prompt, salt);
  }
  // A last one that is surely not lost, and new: it shows a gap before it.
  mock.engine().kv_events()->lose(0);
  const Tokens last(kBlockSize, Token{42});
  mock.serve(last);
  EXPECT_TRUE(mock.eventually([&] {
    if (indexed_blocks(index, last, "", rank) != 1) return false;
    for (const auto& [prompt, salt] : prompts) {
      if (indexed_blocks(index, prompt, salt, rank) != mock.cached_blocks(prompt, salt)) return false;
    }
    return true;
  }));
  EXPECT_GT(mock.engine().kv_events()->counters().removed_blocks, 0);
}

INSTANTIATE_TEST_SUITE_P(All, KvEventShape, testing::ValuesIn(kShapes),
                         [](const auto& shape) { return std::string(shape.param.name); });

TEST(KvEvents, RestartForgetsSilentlyAndCountsFromZero) {
  Mock mock({"", KvEventFormat::kVllmMap});
  epp::BlockIndex index;
  const epp::WorkerRank rank{7, 0};
  index.add_rank(rank);
  epp::KvFeedPool pool(index, 1);
  std::string error;
  ASSERT_TRUE(pool.add(mock.feed(7), error)) << error;
  const Tokens before(2 * kBlockSize, Token{1});
  const Tokens after(2 * kBlockSize, Token{2});
  mock.serve(before);
  ASSERT_TRUE(mock.eventually([&] { return indexed_blocks(index, before, "", rank) == 2; }));

  mock.engine().prefix_cache().clear(false);
  mock.engine().kv_events()->restart();
  EXPECT_EQ(mock.engine().kv_events()->next_sequence(), 0U);
  mock.serve(after);
  EXPECT_TRUE(mock.eventually([&] { return indexed_blocks(index, after, "", rank) == 2; }));
  EXPECT_TRUE(mock.eventually([&] { return indexed_blocks(index, before, "", rank) == 0; }));
}

TEST(KvEvents, EveryRankHasItsOwnPublisherAndContents) {
  Mock mock({"", KvEventFormat::kVllmMap}, 2);
  epp::BlockIndex index;
  epp::KvFeedPool pool(index, 1);
  std::string error;
  for (const std::uint32_t rank : {0U, 1U}) {
    index.add_rank({7, rank});
    ASSERT_TRUE(pool.add(mock.feed(7, rank), error)) << error;
  }
  const Tokens prompt(3 * kBlockSize, Token{1});
  mock.serve(prompt, "", 1);
  EXPECT_TRUE(mock.eventually([&] { return indexed_blocks(index, prompt, "", {7, 1}) == 3; }));
  EXPECT_EQ(indexed_blocks(index, prompt, "", {7, 0}), 0U);
  EXPECT_EQ(mock.cached_blocks(prompt, "", 0), 0U);
}

TEST(PrefixCache, SharedBlocksAreNotFreeAndTheLeastUsedGoFirst) {
  Mock mock({"", KvEventFormat::kVllmMap}, 1, 4);
  const Tokens old(kBlockSize, Token{1});
  const Tokens recent(kBlockSize, Token{2});
  mock.serve(old);
  mock.serve(recent);
  const Tokens asks_for_old(kBlockSize + 1, Token{1});
  mock.serve(asks_for_old);  // two blocks, one of them the old one: used again
  mock.serve(Tokens(2 * kBlockSize, Token{3}));
  EXPECT_EQ(mock.cached_blocks(old), 1U);
  EXPECT_EQ(mock.cached_blocks(recent), 0U);
  EXPECT_EQ(mock.engine().blocks().free(), 4);
}

}  // namespace
}  // namespace handoff::mock
