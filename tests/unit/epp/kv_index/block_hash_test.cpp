#include "epp/kv_index/block_hash.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace handoff::epp {
namespace {

using Hashes = std::vector<std::uint64_t>;

std::vector<std::uint32_t> tokens_from(std::uint32_t first, std::uint32_t last) {
  std::vector<std::uint32_t> tokens(last - first + 1);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Vector {
  std::string why;
  std::vector<std::uint32_t> tokens;
  std::uint32_t block_size;
  std::string lora;
  std::string salt;
  bool eagle;
  std::vector<BlockMedia> media;
  Hashes local;
  Hashes sequence;
};

// Golden values of Dynamo's own tests (first row) and values computed from its published rules with the
// xxhash library.
const Vector kVectors[] = {
    {"upstream golden",
     tokens_from(1, 12),
     4,
     "",
     "",
     false,
     {},
     {14643705804678351452u, 16777012769546811212u, 483935686894639516u},
     {14643705804678351452u, 4945711292740353085u, 12583592247330656132u}},
    {"block size 16",
     tokens_from(1, 48),
     16,
     "",
     "",
     false,
     {},
     {16863443419780771464u, 2287610619914608821u, 12129935312930971799u},
     {16863443419780771464u, 12466389667045779788u, 960926348267535642u}},
    {"LoRA name in the seed",
     tokens_from(1, 12),
     4,
     "adapter-a",
     "",
     false,
     {},
     {11381080598872079209u, 5698110331184095209u, 10923852707342720619u},
     {11381080598872079209u, 17518568667535815909u, 12857975441449519705u}},
    {"cache salt in the seed",
     tokens_from(1, 12),
     4,
     "",
     "tenant-a",
     false,
     {},
     {5738685477468498325u, 11202231085456067787u, 9318114775459440904u},
     {5738685477468498325u, 1076233986426276607u, 14251413665512820044u}},
    {"LoRA and salt",
     tokens_from(1, 12),
     4,
     "adapter-a",
     "tenant-a",
     false,
     {},
     {9967753091837871098u, 17145582438027477403u, 1573782188507051189u},
     {9967753091837871098u, 8253787442643436499u, 6376789474022567002u}},
    {"eagle: a block looks one token ahead",
     tokens_from(1, 12),
     4,
     "",
     "",
     true,
     {},
     {1914873892905420881u, 1929047464662796003u},
     {1914873892905420881u, 13136491855314414045u}},
    {"one media object in block 0",
     tokens_from(1, 12),
     4,
     "",
     "",
     false,
     {{42}},
     {14000361058806882387u, 16777012769546811212u, 483935686894639516u},
     {14000361058806882387u, 10247411101078363231u, 8233477397135640825u}},
    {"two media objects in block 1",
     tokens_from(1, 12),
     4,
     "",
     "",
     false,
     {{}, {7, 42}},
     {14643705804678351452u, 5821139768336541067u, 483935686894639516u},
     {14643705804678351452u, 4593735916114969405u, 468199660744845595u}},
    {"media objects are sorted before hashing",
     tokens_from(1, 12),
     4,
     "",
     "",
     false,
     {{}, {42, 7}},
     {14643705804678351452u, 5821139768336541067u, 483935686894639516u},
     {14643705804678351452u, 4593735916114969405u, 468199660744845595u}},
    {"token 0 counts",
     tokens_from(0, 11),
     4,
     "",
     "",
     false,
     {},
     {9143094415614847814u, 12124091508212882195u, 1088361764653601668u},
     {9143094415614847814u, 9510318385840434533u, 16998148715716822651u}},
    {"a trailing part of a block has no hash",
     tokens_from(1, 11),
     4,
     "",
     "",
     false,
     {},
     {14643705804678351452u, 16777012769546811212u},
     {14643705804678351452u, 4945711292740353085u}},
};

TEST(BlockHash, AgreesWithEveryPublishedVector) {
  RequestHashes hashes;  // one for all rows: what an earlier row left behind must not show
  for (const Vector& row : kVectors) {
    SCOPED_TRACE(row.why);
    const HashOptions options{row.lora, row.salt, row.media, row.eagle};
    hash_request(row.tokens, row.block_size, options, hashes);
    EXPECT_EQ(hashes.local, row.local);
    EXPECT_EQ(hashes.sequence, row.sequence);
    EXPECT_EQ(hash_request(row.tokens, row.block_size, options), row.sequence);
  }
}

TEST(BlockHash, SeedsAgreeWithThePublishedOnes) {
  EXPECT_EQ(request_seed("", ""), 1337u);
  EXPECT_EQ(request_seed("adapter-a", ""), 8842669519798868182u);
  EXPECT_EQ(request_seed("", "tenant-a"), 1948188790972764086u);
  EXPECT_EQ(request_seed("adapter-a", "tenant-a"), 10790858310771630931u);
}

// The one golden value over raw text: nine bytes that are no whole number of tokens, so they are checked
// through a seed.
TEST(BlockHash, HashesBlocksOneByOneLikeARequest) {
  const auto tokens = tokens_from(1, 12);
  const std::span<const std::uint32_t> all(tokens);
  const std::uint64_t first = local_block_hash(all.first(4), {}, request_seed("", ""));
  const std::uint64_t second = local_block_hash(all.subspan(4, 4), {}, request_seed("", ""));
  EXPECT_EQ(first, 14643705804678351452u);
  EXPECT_EQ(second, 16777012769546811212u);
  EXPECT_EQ(chain_hash(first, second), 4945711292740353085u);
  const Vector& media = kVectors[7];
  EXPECT_EQ(local_block_hash(all.subspan(4, 4), media.media[1], request_seed("", "")), media.local[1]);
}

TEST(BlockHash, CountsCompleteBlocks) {
  EXPECT_EQ(complete_blocks(0, 16, false), 0u);
  EXPECT_EQ(complete_blocks(15, 16, false), 0u);
  EXPECT_EQ(complete_blocks(16, 16, false), 1u);
  EXPECT_EQ(complete_blocks(100, 0, false), 0u);
  EXPECT_EQ(complete_blocks(0, 4, true), 0u);
  EXPECT_EQ(complete_blocks(12, 4, true), 2u);  // (len - 1) / bs
  EXPECT_EQ(complete_blocks(13, 4, true), 3u);
}

TEST(BlockHash, HandlesBlocksLargerThanItsScratch) {
  const auto tokens = tokens_from(1, 4096);
  const std::vector<BlockMedia> media = {{3, 1, 2}};
  const auto hashes = hash_request(tokens, 4096, {.media = media});
  ASSERT_EQ(hashes.size(), 1u);
  const std::vector<BlockMedia> sorted = {{1, 2, 3}};
  EXPECT_EQ(hash_request(tokens, 4096, {.media = sorted}), hashes);
  EXPECT_NE(hash_request(tokens, 4096), hashes);
}

// 1,000,000 + (hash mod 2^30)
TEST(BlockHash, MapsMediaToPadTokens) {
  EXPECT_EQ(media_pad_token(0), 1'000'000u);
  EXPECT_EQ(media_pad_token(42), 1'000'042u);
  EXPECT_EQ(media_pad_token((std::uint64_t{1} << 30) + 5), 1'000'005u);
}

TEST(BlockHash, ReadsMediaIdentifiers) {
  const std::string digest = "00000000000000ff" + std::string(48, 'a');
  EXPECT_EQ(media_id(digest, false), 255u);
  EXPECT_EQ(media_id("FFFFFFFFFFFFFFFF" + std::string(48, '0'), true), ~std::uint64_t{0});
  EXPECT_EQ(media_id("image-1", false), std::nullopt);
  EXPECT_EQ(media_id("", true), std::nullopt);
  // XXH3 of the bytes with seed 0, which is what request_seed adds for a LoRA name.
  EXPECT_EQ(media_id("adapter-a", true), 8842669519798868182u - 1337u);
  EXPECT_EQ(media_id(digest.substr(1), false), std::nullopt);
}

// What hashes many blocks in one go must say what hashing them one by one says, at every size that has code
// of its own and at one that has not.
TEST(BlockHash, ManyAtOnceAreAsOneByOne) {
  std::vector<std::uint32_t> tokens(640);
  std::iota(tokens.begin(), tokens.end(), 77U);
  for (const std::uint32_t size : {16U, 24U, 32U, 64U}) {
    Hashes local(7);
    local_block_hashes(tokens, size, 99, local);
    for (std::size_t i = 0; i < local.size(); ++i)
      EXPECT_EQ(local[i], local_block_hash(std::span(tokens).subspan(i * size, size), {}, 99)) << size;
  }
}

TEST(BlockHash, ChainsGoOnWhereTheyEnded) {
  const Hashes local = {11, 22, 33, 44, 55};
  Hashes whole(5);
  chain_hashes(std::nullopt, local, whole.data());
  EXPECT_EQ(whole[0], 11u);
  for (std::size_t i = 1; i < whole.size(); ++i) EXPECT_EQ(whole[i], chain_hash(whole[i - 1], local[i]));
  Hashes rest(3);
  chain_hashes(whole[1], std::span(local).subspan(2), rest.data());
  EXPECT_EQ(rest, Hashes(whole.begin() + 2, whole.end()));
  chain_hashes(std::nullopt, {}, nullptr);
}

// The function under all of it, with the chain's seed: Dynamo's own golden value.
TEST(BlockHash, IsXxh3) {
  const std::string_view text = "test data";
  EXPECT_EQ(XXH3_64bits_withSeed(text.data(), text.size(), kChainSeed), 13226331709069118873u);
}

}  // namespace
}  // namespace handoff::epp
