#include "epp/selection/tracking_hash.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "epp/selection/blake3.hpp"
#include "tests/unit/epp/selection/selection_fixture.hpp"

namespace handoff::epp {
namespace {

std::string hex(const std::array<std::uint8_t, 32>& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

// The specification's own vectors: input bytes 0, 1 .. 250, 0, 1 .., keyed with its key; sizes around the
// edges of blocks, chunks and trees.
TEST(Blake3, AgreesWithThePublishedVectors) {
  struct Row {
    std::size_t bytes;
    const char* digest;
  };
  const Row rows[] = {
      {0, "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26"},
      {1, "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b"},
      {63, "bb1eb5d4afa793c1ebdd9fb08def6c36d10096986ae0cfe148cd101170ce37ae"},
      {64, "ba8ced36f327700d213f120b1a207a3b8c04330528586f414d09f2f7d9ccb7e6"},
      {65, "c0a4edefa2d2accb9277c371ac12fcdbb52988a86edc54f0716e1591b4326e72"},
      {1023, "c951ecdf03288d0fcc96ee3413563d8a6d3589547f2c2fb36d9786470f1b9d6e"},
      {1024, "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4"},
      {1025, "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69"},
      {2048, "879cf1fa2ea0e79126cb1063617a05b6ad9d0b696d0d757cf053439f60a99dd1"},
      {2049, "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5"},
      {3072, "044a0e7b172a312dc02a4c9a818c036ffa2776368d7f528268d2e6b5df191770"},
      {3073, "68dede9bef00ba89e43f31a6825f4cf433389fedae75c04ee9f0cf16a427c95a"},
      {4097, "00df940cd36bb9fa7cbbc3556744e0dbc8191401afe70520ba292ee3ca80abbc"},
      {8193, "954a2a75420c8d6547e3ba5b98d963e6fa6491addc8c023189cc519821b4a1f5"},
  };
  constexpr std::string_view kKey = "whats the Elvish word for friend";
  std::array<std::uint8_t, 32> key{};
  std::copy(kKey.begin(), kKey.end(), key.begin());
  for (const Row& row : rows) {
    std::vector<std::uint8_t> input(row.bytes);
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<std::uint8_t>(i % 251);
    EXPECT_EQ(hex(blake3_keyed(key, input)), row.digest) << row.bytes;
  }
}

TrackingKey test_key() {
  TrackingKey key;
  key.key_id = "2026-01";
  key.key.fill(0x5a);
  return key;
}

std::vector<std::uint32_t> tokens(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
}

// The published vector of keyed-xxh3-v1.
TEST(TrackingHash, AgreesWithThePublishedVector) {
  const auto hashes = keyed_tracking_hashes(test_key(), {"model-a", "tenant-a"}, tokens(0, 12), 4,
                                            {.lora_name = "adapter-a", .cache_salt = "cache-a"});
  EXPECT_EQ(hashes,
            (std::vector<std::uint64_t>{4363769719052127296U, 14998523962162619427U, 13920914207884994756U}));
}

TEST(TrackingHash, SeparatesWhateverItIsBoundTo) {
  const HashOptions both{.lora_name = "adapter-a", .cache_salt = "cache-a"};
  const PartitionKey partition{"model-a", "tenant-a"};
  const auto base = keyed_tracking_hashes(test_key(), partition, tokens(0, 12), 4, both);
  TrackingKey other_key = test_key();
  other_key.key[31] = 0;
  TrackingKey other_id = test_key();
  other_id.key_id = "2026-02";
  HashOptions other_salt = both;
  other_salt.cache_salt = {};
  HashOptions other_lora = both;
  other_lora.lora_name = {};
  HashOptions eagle = both;
  eagle.is_eagle = true;
  const std::vector<std::vector<std::uint64_t>> others = {
      keyed_tracking_hashes(other_key, partition, tokens(0, 12), 4, both),
      keyed_tracking_hashes(other_id, partition, tokens(0, 12), 4, both),
      keyed_tracking_hashes(test_key(), {"model-b", "tenant-a"}, tokens(0, 12), 4, both),
      keyed_tracking_hashes(test_key(), {"model-a", "tenant-b"}, tokens(0, 12), 4, both),
      keyed_tracking_hashes(test_key(), partition, tokens(0, 12), 4, other_salt),
      keyed_tracking_hashes(test_key(), partition, tokens(0, 12), 4, other_lora),
      keyed_tracking_hashes(test_key(), partition, tokens(0, 12), 4, eagle),
  };
  for (const auto& other : others) EXPECT_NE(other.front(), base.front());
  // Equal prompts still share.
  EXPECT_EQ(keyed_tracking_hashes(test_key(), partition, tokens(0, 8), 4, both)[1], base[1]);
}

class KeyedTracking : public test::SelectionFixture {};

// With a key the load shares as without one, the index is asked with its own hashes, and booking facts show
// the keyed ones only.
TEST_F(KeyedTracking, CountsLikeThePublicHashesAndShowsNoneOfThem) {
  SelectorConfig config;
  config.tracking_key = test_key();
  start(config);
  add_workers(1);
  const auto ids = tokens(0, 48);
  TokenPrompt prompt;
  prompt.token_ids = ids;
  SelectRequest wanted = request("a", prompt);
  wanted.return_booking_facts = true;
  const Selection first = book(wanted);
  expect_load(1, 48, 3, 1);
  const auto keyed = keyed_tracking_hashes(test_key(), {"default", "default"}, ids, test::kBlockSize, {});
  EXPECT_EQ(first.sequence_hashes, keyed);
  EXPECT_NE(first.sequence_hashes, hash_request(ids, test::kBlockSize));
  book(request("b", prompt));
  expect_load(1, 96, 3, 2);
  EXPECT_EQ(view.matches, 2);
}

}  // namespace
}  // namespace handoff::epp
