#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "tests/unit/epp/kv_index/index_fixture.hpp"

// Meant for ThreadSanitizer, but each test also states what a reader may see while writers are at work.
namespace handoff::epp {
namespace {

using test::Prompt;

constexpr WorkerRank kSteady{1, 0};
constexpr SteadyTime kNow{};
constexpr std::uint64_t kWriters = 3;
constexpr int kRounds = 400;

class Writers {
 public:
  Writers(BlockIndex& index, const std::vector<Prompt>& prompts) : index_(index), prompts_(prompts) {}

  // Stores, extends, removes and clears prompts of its own rank; all ranks share the prompts.
  void churn(std::uint64_t worker) {
    const WorkerRank rank{worker, 0};
    std::mt19937_64 random(worker);
    for (int round = 0; round < kRounds; ++round) {
      const Prompt& prompt = prompts_[random() % prompts_.size()];
      const std::size_t half = prompt.local.size() / 2;
      index_.apply_stored(rank, Tier::device, prompt.slice(0, half));
      index_.apply_stored(rank, random() % 2 == 0 ? Tier::device : Tier::host, prompt.slice(half, half));
      index_.predict(rank, prompt.sequence, kNow + std::chrono::seconds(round));
      if (random() % 4 != 0)
        index_.apply_removed(rank, Tier::device, std::span(prompt.engine).subspan(random() % half));
      if (random() % 16 == 0) index_.clear_rank(rank);
      if (random() % 32 == 0) {
        index_.remove_rank(rank);
        index_.add_rank(rank);
      }
    }
    --running_;
  }

  bool running() const { return running_ > 0; }

 private:
  BlockIndex& index_;
  const std::vector<Prompt>& prompts_;
  std::atomic<std::uint64_t> running_{kWriters};
};

std::vector<Prompt> shared_prompts() {
  std::vector<Prompt> prompts;
  for (std::uint64_t id = 0; id < 12; ++id) prompts.emplace_back(id, 32);
  return prompts;
}

void run(BlockIndex& index, bool expect_steady) {
  const std::vector<Prompt> prompts = shared_prompts();
  index.add_rank(kSteady);
  for (const Prompt& prompt : prompts) index.apply_stored(kSteady, Tier::device, prompt.all());
  for (std::uint64_t w = 0; w < kWriters; ++w) index.add_rank({10 + w, 0});

  Writers writers(index, prompts);
  std::atomic<std::uint64_t> matches{0};
  std::vector<std::thread> threads;
  for (std::uint64_t w = 0; w < kWriters; ++w) threads.emplace_back([&writers, w] { writers.churn(10 + w); });
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&index, &prompts, &writers, &matches, expect_steady, r] {
      OverlapScores scores;
      for (std::size_t i = static_cast<std::size_t>(r); writers.running() || i < 10; ++i) {
        const Prompt& prompt = prompts[i % prompts.size()];
        index.match_prefix(prompt.sequence, kNow, scores);
        for (const RankOverlap& row : scores.rows()) {
          ASSERT_TRUE(row.rank == kSteady || (row.rank.worker >= 10 && row.rank.worker < 10 + kWriters));
          ASSERT_LE(row.total(), 32u);
        }
        // What nobody touches must be seen whole at any time, whatever the tables go through.
        const RankOverlap* steady = scores.find(kSteady);
        if (expect_steady) {
          ASSERT_TRUE(steady != nullptr && steady->device == 32u);
        }
        ++matches;
      }
    });
  }
  threads.emplace_back([&index, &writers] {
    for (int i = 0; writers.running(); ++i) {
      index.maintain(kNow + std::chrono::seconds(i));
      (void)index.stats();
      // Something that makes the tables grow and shrink beside all this.
      const WorkerRank visitor{99, 0};
      index.add_rank(visitor);
      for (std::uint64_t id = 0; id < 20; ++id)
        index.apply_stored(visitor, Tier::device, Prompt(1000 + id, 64).all());
      index.remove_rank(visitor);
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(matches, 0u);
}

TEST(BlockIndexConcurrency, ReadersSeeUntouchedRanksWholeWhileWritersChurn) {
  BlockIndexOptions options;
  options.shards = 4;
  BlockIndex index(options);
  run(index, true);
  // When all is quiet again, no trace of the others may stay.
  for (std::uint64_t w = 0; w < kWriters; ++w) index.remove_rank({10 + w, 0});
  for (int i = 0; i < 6; ++i) index.maintain(kNow);
  EXPECT_EQ(index.stats().blocks, 12u * 32);
  EXPECT_EQ(index.stats().holder_sets, 0u);
  EXPECT_EQ(index.stats().ordinals, 1u);
}

// The visitor's blocks push others out all the time: eviction beside readers that mark what they match.
TEST(BlockIndexConcurrency, StaysWithinItsBoundWhileAllAreAtWork) {
  BlockIndexOptions options;
  options.shards = 2;
  options.max_blocks = 512;
  options.max_engine_hashes = 700;
  BlockIndex index(options);
  run(index, false);
  EXPECT_LE(index.stats().blocks, 512u);
  EXPECT_LE(index.stats().engine_hashes, 700u);
}

}  // namespace
}  // namespace handoff::epp
