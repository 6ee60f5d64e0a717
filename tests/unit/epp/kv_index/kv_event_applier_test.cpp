#include "epp/kv_index/kv_event_applier.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/unit/epp/kv_index/index_fixture.hpp"
#include "tests/unit/epp/kv_index/kv_event_writer.hpp"

namespace handoff::epp {
namespace {

using namespace test;

constexpr WorkerRank kRank{7, 0};
constexpr auto kNew = Generation::vllm_2026_06;

std::vector<std::uint32_t> tokens_from(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Expectations are stated from the request's side: what a prompt with these tokens, adapter and salt would
// match.
class KvEventApplierTest : public testing::Test {
 protected:
  KvEventApplierTest() {
    index_.add_rank(kRank);
    index_.add_rank({7, 1});
  }

  static KvApplierOptions options(bool is_eagle = false) {
    KvApplierOptions options;
    options.rank = kRank;
    options.rank_count = 2;
    options.block_size = 4;
    options.is_eagle = is_eagle;
    options.wall_clock = [] { return 1'700'000'001.0; };
    return options;
  }

  KvApplyReport apply(std::initializer_list<Json> events, Json rank = 0) {
    return applier_.apply(batch(events, std::move(rank)));
  }

  RankOverlap match(const HashOptions& request = {}, WorkerRank rank = kRank) {
    OverlapScores scores;
    index_.match_prefix(hash_request(tokens_, 4, request), {}, scores);
    const RankOverlap* row = scores.find(rank);
    return row == nullptr ? RankOverlap{} : *row;
  }

  // Three blocks of the prompt 1..12, with engine hashes 101, 102, 103.
  Stored prompt() const {
    Stored event;
    event.hashes = {101, 102, 103};
    event.tokens = tokens_;
    return event;
  }

  BlockIndex index_;
  KvEventApplier applier_{index_, options()};
  std::vector<std::uint32_t> tokens_ = tokens_from(1, 12);
};

TEST_F(KvEventApplierTest, IndexesTheEventsOfEveryGeneration) {
  for (const Generation generation : kGenerations) {
    SCOPED_TRACE(static_cast<int>(generation));
    Stored first = prompt();
    first.hashes = {101};
    first.tokens = tokens_from(1, 4);
    Stored rest = prompt();
    rest.hashes = {102, 0xFFFFFFFFFFFFFF03u};
    rest.tokens = tokens_from(5, 8);
    rest.parent = 101;
    apply({stored_event(generation, first)});
    apply({stored_event(generation, rest)});
    EXPECT_EQ(match().device, 3u);
    apply({removed_event(generation, {0xFFFFFFFFFFFFFF03u})});
    EXPECT_EQ(match().device, 2u);
    apply({cleared_event(generation)});
    EXPECT_EQ(match().device, 0u);
  }
  EXPECT_EQ(applier_.counters().decode_errors, 0u);
  EXPECT_EQ(applier_.counters().orphaned_stores, 0u);
}

TEST_F(KvEventApplierTest, PutsMediaIntoTiersWhateverTheirCase) {
  struct Row {
    const char* medium;
    Tier tier;
  };
  const Row rows[] = {{"GPU", Tier::device},       {"device", Tier::device},   {"", Tier::device},
                      {"CPU", Tier::host},         {"cpu", Tier::host},        {"CPU_PINNED", Tier::host},
                      {"cpu_tier1", Tier::host},   {"CPU_TIER2", Tier::disk},  {"Disk", Tier::disk},
                      {"NVME", Tier::disk},        {"STORAGE", Tier::disk},    {"EXTERNAL", Tier::external},
                      {"network", Tier::external}, {"REMOTE", Tier::external}, {"shared", Tier::external},
                      {"something", Tier::device}};
  for (const Row& row : rows) EXPECT_EQ(tier_of_medium(row.medium), row.tier) << row.medium;

  Stored event = prompt();
  event.medium = "cpu";
  apply({stored_event(kNew, event)});
  EXPECT_EQ(match().host, 3u);
  apply({removed_event(kNew, {101, 102, 103}, "CPU")});
  EXPECT_EQ(match().total(), 0u);
}

TEST_F(KvEventApplierTest, AddsTheTierOfAPlaceholderToKnownBlocks) {
  apply({stored_event(kNew, prompt())});
  Stored placeholder;
  placeholder.hashes = {101, 102, 999};
  placeholder.block_size = 0;
  placeholder.medium = "CPU";
  apply({stored_event(kNew, placeholder)});
  EXPECT_EQ(applier_.counters().copied_blocks, 2u);
  apply({removed_event(kNew, {101, 102, 103})});
  EXPECT_EQ(match().host, 2u);
  EXPECT_EQ(match().device, 0u);
}

TEST_F(KvEventApplierTest, HashesWithTheAdapter) {
  Stored event = prompt();
  event.lora_name = "adapter-a";
  apply({stored_event(kNew, event)});
  EXPECT_EQ(match().device, 0u);
  EXPECT_EQ(match({"adapter-a"}).device, 3u);
}

// The salt is on the first block only; its children inherit it.
TEST_F(KvEventApplierTest, HandsTheSaltDownFromParentToChild) {
  const Json salts[] = {Json("tenant-a"), Json("dynamo-cache-salt:tenant-a")};
  for (const Json& salt : salts) {
    SCOPED_TRACE(salt);
    Stored first = prompt();
    first.hashes = {101};
    first.tokens = tokens_from(1, 4);
    first.lora_name = "adapter-a";
    first.extra_keys = Json::array({Json::array({"adapter-a", salt})});
    Stored rest = prompt();
    rest.hashes = {102, 103};
    rest.tokens = tokens_from(5, 8);
    rest.parent = 101;
    rest.lora_name = "adapter-a";
    rest.extra_keys = Json::array({Json::array({"adapter-a"}), nullptr});
    apply({stored_event(kNew, first), stored_event(kNew, rest)});
    EXPECT_EQ(match({"adapter-a", "tenant-a"}).device, 3u);
    EXPECT_EQ(match({"adapter-a"}).device, 0u);
    apply({cleared_event(kNew)});
  }
}

TEST_F(KvEventApplierTest, ReadsSglangsSaltInBothForms) {
  for (const Generation generation : {Generation::sglang_array, Generation::sglang_map}) {
    Stored event = prompt();
    event.cache_salt = "tenant-a";
    apply({stored_event(generation, event)});
    EXPECT_EQ(match({{}, "tenant-a"}).device, 3u);
    EXPECT_EQ(match().device, 0u);
    apply({cleared_event(generation)});
  }
}

// SGLang's hash knows no salt. When one hash is seen with two salts, its children belong to nobody.
TEST_F(KvEventApplierTest, DropsChildrenOfAmbiguousParents) {
  Stored event = prompt();
  event.hashes = {101};
  event.tokens = tokens_from(1, 4);
  event.cache_salt = "tenant-a";
  apply({stored_event(Generation::sglang_map, event)});
  event.cache_salt = "tenant-b";
  apply({stored_event(Generation::sglang_map, event)});
  Stored child = prompt();
  child.hashes = {102};
  child.tokens = tokens_from(5, 4);
  child.parent = 101;
  apply({stored_event(Generation::sglang_map, child)});
  EXPECT_EQ(applier_.counters().ambiguous_salts, 1u);
  EXPECT_EQ(match({{}, "tenant-a"}).device, 1u);
  EXPECT_EQ(match({{}, "tenant-b"}).device, 1u);
}

// The child says whose it is, but not which of its parent's blocks it continues. That is no contradiction:
// there is nothing to clear and to ask for again.
TEST_F(KvEventApplierTest, AnAmbiguousParentIsNoContradiction) {
  Stored event = prompt();
  for (const char* salt : {"tenant-a", "tenant-b"}) {
    event.cache_salt = salt;
    apply({stored_event(Generation::sglang_map, event)});
  }
  Stored child = event;
  child.hashes = {104};
  child.tokens = tokens_from(13, 4);
  child.parent = 103;
  const KvApplyReport report = apply({stored_event(Generation::sglang_map, child)});
  EXPECT_FALSE(report.has_orphans);
  EXPECT_TRUE(report.has_gaps);
  EXPECT_EQ(applier_.counters().ambiguous_parents, 1u);
  EXPECT_EQ(applier_.counters().orphaned_stores, 0u);
}

TEST_F(KvEventApplierTest, ManyTenantsShareASystemPrompt) {
  Stored event = prompt();
  for (int i = 0; i < 60; ++i) {
    event.cache_salt = "tenant-" + std::to_string(i);
    EXPECT_FALSE(apply({stored_event(Generation::sglang_map, event)}, i % 2).has_gaps);
  }
  for (int i = 0; i < 60; ++i) {
    const std::string salt = "tenant-" + std::to_string(i);
    EXPECT_EQ(match({{}, salt}, {7, static_cast<std::uint32_t>(i % 2)}).device, 3u) << salt;
  }
}

// As many as ever come: those that are gone are forgotten. The one that stays is not mixed up with any of
// them.
TEST_F(KvEventApplierTest, SaltsMayComeAndGoForEver) {
  const auto one = [&](std::uint64_t hash, const std::string& salt, std::uint32_t first,
                       std::optional<std::uint64_t> parent = {}) {
    Stored event;
    event.hashes = {hash};
    event.tokens = tokens_from(first, 4);
    if (parent) event.parent = *parent;
    if (!parent) event.cache_salt = salt;
    return stored_event(Generation::sglang_map, event);
  };
  apply({one(1, "stays", 1)});
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    ASSERT_FALSE(apply({one(1000 + i, "s" + std::to_string(i), 1)}).has_gaps) << i;
    apply({removed_event(Generation::sglang_map, {1000 + i})});
  }
  EXPECT_EQ(applier_.counters().refused_salts, 0u);
  apply({one(2, "", 5, 1), one(50'000, "last", 1), one(50'001, "", 5, 50'000)});
  EXPECT_EQ(match({{}, "stays"}).device, 2u);
  EXPECT_EQ(match({{}, "last"}).device, 2u);
}

TEST_F(KvEventApplierTest, RefusesSaltedBlocksWhoseSaltItCannotRemember) {
  Stored event;
  event.tokens = tokens_from(1, 4);
  std::uint64_t hash = 0;
  std::string salt;
  while (applier_.counters().refused_salts == 0 && hash < 20'000) {
    event.hashes = {++hash};
    salt = "s" + std::to_string(hash);
    event.cache_salt = salt;
    apply({stored_event(Generation::sglang_map, event)});
  }
  EXPECT_EQ(hash, (std::uint64_t{1} << 14) + 1);
  EXPECT_EQ(match({{}, salt}).device, 0u);
  // Its children would count as anybody's.
  Stored child;
  child.hashes = {100'000};
  child.tokens = tokens_from(5, 4);
  child.parent = hash;
  apply({stored_event(Generation::sglang_map, child)});
  EXPECT_EQ(match().device, 0u);
  apply({removed_event(Generation::sglang_map, {1})});
  apply({stored_event(Generation::sglang_map, event)});
  EXPECT_EQ(match({{}, salt}).device, 1u);
}

// A salted block is forgotten when it has left its last tier, not before and not never.
TEST_F(KvEventApplierTest, KeepsTheSaltAsLongAsAnyTierHasTheBlock) {
  Stored event;
  event.hashes = {101};
  event.tokens = tokens_from(1, 4);
  event.cache_salt = "tenant-a";
  apply({stored_event(kNew, event)});
  event.medium = "CPU";
  apply({stored_event(kNew, event), removed_event(kNew, {101}, "GPU")});
  Stored child;
  child.hashes = {102};
  child.tokens = tokens_from(5, 4);
  child.parent = 101;
  child.medium = "CPU";
  apply({stored_event(kNew, child)});
  EXPECT_EQ(match({{}, "tenant-a"}).host, 2u);
  EXPECT_EQ(match().total(), 0u);
  // From the host alone, as often as it likes.
  for (std::uint64_t i = 0; i < 300; ++i) {
    Stored many;
    many.cache_salt = "tenant-b";
    many.medium = "CPU";
    for (std::uint64_t block = 0; block < 1000; ++block) many.hashes.push_back(1'000'000 + i * 1000 + block);
    many.tokens = tokens_from(1, 4000);
    ASSERT_FALSE(apply({stored_event(kNew, many)}).has_gaps) << i;
    std::vector<std::uint64_t> hashes = many.hashes;
    apply({removed_event(kNew, hashes, "CPU")});
  }
  EXPECT_EQ(applier_.counters().refused_salts, 0u);
}

TEST_F(KvEventApplierTest, HashesWithMediaObjects) {
  const std::string digest = "000000000000002a" + std::string(48, '0');  // 42
  Stored event = prompt();
  event.extra_keys = Json::array({Json::array({digest}), Json::array({Json::array({"image", 3})}), nullptr});
  apply({stored_event(kNew, event)});
  const std::vector<BlockMedia> media = {{42}, {*media_id("image", true)}};
  EXPECT_EQ(match({{}, {}, media}).device, 3u);
  EXPECT_EQ(match().device, 0u);
}

TEST_F(KvEventApplierTest, HashesPairsTheEagleWay) {
  Json event = stored_event(Generation::sglang_map, {{101, 102}, nullptr, {}, 4});
  Json pairs = Json::array();
  for (std::uint32_t t = 1; t <= 8; ++t) pairs.push_back({t, t + 1});
  event["token_ids"] = pairs;
  apply({event});
  EXPECT_EQ(match({{}, {}, {}, true}).device, 2u);
  EXPECT_EQ(match().device, 0u);
}

TEST_F(KvEventApplierTest, StopsAtBlocksOfAnotherSize) {
  Stored event = prompt();
  event.block_size = 8;
  const KvApplyReport report = apply({stored_event(kNew, event)});
  EXPECT_TRUE(report.has_gaps);
  EXPECT_EQ(applier_.counters().wrong_block_sizes, 1u);
  event.block_size = 4;
  event.tokens = tokens_from(1, 10);  // of three blocks only two are there
  apply({stored_event(kNew, event)});
  EXPECT_EQ(match().device, 2u);
  EXPECT_EQ(applier_.counters().short_tokens, 1u);
}

TEST_F(KvEventApplierTest, ReportsOrphans) {
  Stored event = prompt();
  event.parent = 55;
  EXPECT_TRUE(apply({stored_event(kNew, event)}).has_orphans);
  EXPECT_EQ(applier_.counters().orphaned_stores, 1u);
}

// Hybrid models announce a block once per cache group; only the main attention's cache is a prefix cache.
TEST_F(KvEventApplierTest, IndexesTheMainAttentionGroupOnly) {
  for (const char* kind : {"full_attention", "mla_attention", "sink_full_attention"}) {
    Stored event = prompt();
    event.group = 1;
    event.kind = kind;
    apply({stored_event(kNew, event)});
    EXPECT_EQ(match().device, 3u) << kind;
    apply({cleared_event(kNew)});
  }
  for (const char* kind : {"sliding_window", "mamba", "cross_attention", "unknown", "not heard of"}) {
    Stored event = prompt();
    event.group = 2;
    event.kind = kind;
    const KvApplyReport report = apply({stored_event(kNew, event)});
    EXPECT_EQ(match().device, 0u) << kind;
    EXPECT_FALSE(report.has_gaps || report.has_orphans) << "nothing is missing of the main group";
  }
  EXPECT_EQ(applier_.counters().ignored_groups, 5u);
}

TEST_F(KvEventApplierTest, LearnsGroupsForEventsThatDoNotNameTheirKind) {
  Stored event = prompt();
  event.group = 5;
  apply({stored_event(kNew, event)});  // not heard of yet
  EXPECT_EQ(match().device, 0u);
  event.group = 0;
  apply({stored_event(kNew, event)});  // group 0 is the main one unless told otherwise
  EXPECT_EQ(match().device, 3u);
  event.group = 5;
  event.kind = "sliding_window";
  apply({stored_event(kNew, event)});
  // The window lets a block go; the full attention still has it.
  apply({removed_event(kNew, {103}, "GPU", 5)});
  EXPECT_EQ(match().device, 3u);
  apply({removed_event(kNew, {103}, "GPU", 0)});
  EXPECT_EQ(match().device, 2u);
}

TEST_F(KvEventApplierTest, DropsEventsAboutOtherPlaces) {
  Stored event = prompt();
  event.locality = "REMOTE";
  apply({stored_event(kNew, event)});
  event.locality = "ORBIT";
  apply({stored_event(kNew, event)});
  EXPECT_EQ(match().device, 0u);
  EXPECT_EQ(applier_.counters().ignored_localities, 2u);
  event.locality = "LOCAL";
  apply({stored_event(kNew, event)});
  EXPECT_EQ(match().device, 3u);
}

// The rank in a batch counts where the worker has it; a deployment that numbers its pods' ranks globally does
// not.
TEST_F(KvEventApplierTest, FollowsTheRankOfTheBatchWithinTheWorker) {
  apply({stored_event(kNew, prompt())}, 1);
  EXPECT_EQ(match({}, {7, 1}).device, 3u);
  EXPECT_EQ(match().device, 0u);
  apply({stored_event(kNew, prompt())}, 17);
  EXPECT_EQ(match().device, 3u);
  // A broken history is broken for every rank that was written to.
  applier_.clear();
  EXPECT_EQ(match({}, {7, 1}).device, 0u);
  EXPECT_EQ(match().device, 0u);
}

TEST_F(KvEventApplierTest, CountsWhatItCannotDecode) {
  const KvApplyReport report = applier_.apply(pack(5));
  EXPECT_FALSE(report.is_decoded);
  EXPECT_EQ(applier_.counters().decode_errors, 1u);
  apply({Json::array({"NewEvent"})});
  EXPECT_EQ(applier_.counters().unknown_events, 1u);
}

TEST_F(KvEventApplierTest, MeasuresTheLag) {
  apply({});
  EXPECT_DOUBLE_EQ(applier_.counters().lag_seconds, 0.75);
  for (const double no_time : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    applier_.apply(pack(Json::array({no_time, Json::array(), 0})));
    EXPECT_DOUBLE_EQ(applier_.counters().lag_seconds, 0.75);
  }
  EXPECT_EQ(applier_.counters().batches, 4u);
}

// Only the last clearing of a batch counts, and costs.
TEST_F(KvEventApplierTest, ABatchClearsOnce) {
  Stored kept = prompt();
  Stored lost = prompt();
  lost.tokens = tokens_from(100, 12);
  apply({stored_event(kNew, lost), cleared_event(kNew), stored_event(kNew, lost), cleared_event(kNew),
         stored_event(kNew, kept)});
  EXPECT_EQ(match().device, 3u);
  EXPECT_EQ(index_.stats().blocks, 3u);
  EXPECT_EQ(index_.stats().clears, 1u);
  EXPECT_EQ(applier_.counters().cleared_events, 2u);
  EXPECT_EQ(applier_.counters().stored_events, 3u);
  apply({stored_event(kNew, lost), cleared_event(kNew)});
  EXPECT_EQ(match().device, 0u);
}

}  // namespace
}  // namespace handoff::epp
