#include "sidecar/memory_budget.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace handoff::sidecar {
namespace {

TEST(MemoryBudget, GivesUpToItsLimitAndNoMore) {
  MemoryBudget budget(10);
  EXPECT_TRUE(budget.try_take(10));
  EXPECT_FALSE(budget.try_take(1));
  EXPECT_TRUE(budget.try_take(0));
  budget.give_back(4);
  EXPECT_TRUE(budget.try_take(4));
  EXPECT_EQ(budget.taken(), 10u);
}

TEST(MemoryBudget, IsNotFooledByHugeSizes) {
  MemoryBudget budget(10);
  EXPECT_TRUE(budget.try_take(5));
  EXPECT_FALSE(budget.try_take(std::numeric_limits<std::size_t>::max()));
  EXPECT_EQ(budget.taken(), 5u);
}

TEST(BudgetShare, GrowsAndGivesBackWithItsEnd) {
  MemoryBudget budget(10);
  {
    BudgetShare share(budget);
    EXPECT_TRUE(share.grow_to(6));
    EXPECT_TRUE(share.grow_to(3));  // has more already
    EXPECT_EQ(budget.taken(), 6u);
    EXPECT_FALSE(share.grow_to(11));
    EXPECT_EQ(budget.taken(), 6u);
  }
  EXPECT_EQ(budget.taken(), 0u);
}

TEST(BudgetShare, ShrinksToWhatIsNeeded) {
  MemoryBudget budget(10);
  BudgetShare share(budget);
  EXPECT_TRUE(share.grow_to(8));
  share.shrink_to(9);  // has less already
  EXPECT_EQ(budget.taken(), 8u);
  share.shrink_to(3);
  EXPECT_EQ(budget.taken(), 3u);
}

TEST(BudgetShare, TakesItsBytesAlongWhenMoved) {
  MemoryBudget budget(10);
  BudgetShare first(budget);
  EXPECT_TRUE(first.grow_to(6));
  {
    BudgetShare second(std::move(first));
    EXPECT_EQ(budget.taken(), 6u);
    BudgetShare third(budget);
    EXPECT_TRUE(third.grow_to(2));
    third = std::move(second);
    EXPECT_EQ(budget.taken(), 8u);
  }
  EXPECT_EQ(budget.taken(), 0u);
}

}  // namespace
}  // namespace handoff::sidecar
