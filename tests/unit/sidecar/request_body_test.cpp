#include "sidecar/request_body.hpp"

#include <gtest/gtest.h>

#include <string>

namespace handoff::sidecar {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;

void fill(RequestBody& body, std::size_t bytes) {
  const std::string piece(16 * 1024, 'x');
  while (body.size() < bytes) {
    ASSERT_TRUE(body.append(std::string_view(piece).substr(0, bytes - body.size())));
  }
}

// Growing doubles; what is known to be the end must not.
TEST(RequestBody, CountsNoMoreThanAnAnnouncedBodyHas) {
  for (const std::size_t length : {kMiB - 1, kMiB, kMiB + 60, 2 * kMiB + 5}) {
    MemoryBudget budget(4 * kMiB);
    RequestBody body(budget);
    body.expect(length);
    fill(body, length);
    EXPECT_EQ(budget.taken(), length);
    body.release();
    EXPECT_EQ(budget.taken(), 0u);
  }
}

TEST(RequestBody, AnAnnouncedLengthCostsNothingYet) {
  MemoryBudget budget(kMiB);
  RequestBody body(budget);
  body.expect(32 * kMiB);
  ASSERT_TRUE(body.reserve_more(kMiB));
  EXPECT_LE(budget.taken(), 16u * 1024);
}

TEST(RequestBody, GivesBackWhatABodyInChunksDidNotFill) {
  MemoryBudget budget(4 * kMiB);
  RequestBody body(budget);
  fill(body, kMiB + 60);
  EXPECT_GT(budget.taken(), kMiB + 60);
  body.settle();
  EXPECT_EQ(budget.taken(), kMiB + 60);
  EXPECT_EQ(body.view(), std::string(kMiB + 60, 'x'));
}

TEST(RequestBody, TakesTheNextBodyAfterOneThatWasWhole) {
  MemoryBudget budget(4 * kMiB);
  RequestBody body(budget);
  body.expect(10);
  fill(body, 10);
  body.settle();
  body.clear();
  fill(body, 3 * kMiB);
  EXPECT_EQ(body.size(), 3 * kMiB);
  EXPECT_GE(budget.taken(), 3 * kMiB);
}

}  // namespace
}  // namespace handoff::sidecar
