#include "epp/tokenization/prompt_cache.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

TokenizedPrompts prompt_of(std::size_t tokens) {
  std::vector<TokenizedPrompt> prompts(1);
  prompts[0].token_ids.assign(tokens, 7);
  return std::make_shared<const std::vector<TokenizedPrompt>>(std::move(prompts));
}

// All in one shard.
PromptKey key(std::uint64_t n) {
  return {0, n};
}

TEST(PromptCache, ForgetsTheLeastRecentlyUsedAtItsBound) {
  PromptCache cache(8 * 4096);
  for (std::uint64_t n = 0; n < 3; ++n) cache.put(key(n), prompt_of(250));  // some 1300 bytes each
  EXPECT_TRUE(cache.find(key(0)));
  cache.put(key(3), prompt_of(250));
  EXPECT_TRUE(cache.find(key(0)));
  EXPECT_FALSE(cache.find(key(1)));
  EXPECT_TRUE(cache.find(key(2)));
  EXPECT_LE(cache.bytes(), 4096U);
}

TEST(PromptCache, NeverGrowsBeyondItsBound) {
  PromptCache cache(64 * 1024);
  for (std::uint64_t n = 0; n < 1000; ++n) {
    cache.put({n, n}, prompt_of(n % 900));
    ASSERT_LE(cache.bytes(), 64U * 1024);
  }
  EXPECT_GT(cache.bytes(), 32U * 1024);
}

TEST(PromptCache, LeavesOutWhatIsTooLarge) {
  PromptCache cache(8 * 4096);
  cache.put(key(1), prompt_of(10));
  cache.put(key(2), prompt_of(10000));
  EXPECT_TRUE(cache.find(key(1)));
  EXPECT_FALSE(cache.find(key(2)));
}

TEST(PromptCache, KeepsNothingWithoutMemory) {
  PromptCache cache(0);
  cache.put(key(1), prompt_of(1));
  EXPECT_FALSE(cache.find(key(1)));
}

}  // namespace
}  // namespace handoff::epp
