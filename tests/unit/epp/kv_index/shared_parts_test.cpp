#include "epp/kv_index/shared_parts.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

TEST(SharedPages, CopiesDontSeeLaterChangesAndShareTheRest) {
  SharedPages<int> pages;
  for (int i = 0; i < 200; ++i) {
    pages.emplace_back();
    pages.change(static_cast<std::size_t>(i)) = i;
  }
  const auto first = pages.share();
  pages.change(70) = -1;
  pages.change(71) = -2;
  const auto second = pages.share();
  pages.change(70) = -3;
  EXPECT_EQ(first[70], 70);
  EXPECT_EQ(second[70], -1);
  EXPECT_EQ(pages[70], -3);
  EXPECT_EQ(second[71], -2);
  EXPECT_EQ(pages[71], -2);
  EXPECT_EQ(&first[0], &second[0]);
  EXPECT_EQ(&first[199], &pages[199]);
  EXPECT_NE(&first[64], &second[64]);
}

TEST(SharedPages, GrowAndShrinkWithoutTouchingCopies) {
  SharedPages<int> pages;
  for (int i = 0; i < 65; ++i) pages.emplace_back();
  const auto copy = pages.share();
  pages.pop_back();
  pages.pop_back();
  pages.emplace_back();
  pages.change(63) = 7;
  pages.emplace_back();
  EXPECT_EQ(pages.size(), 65U);
  EXPECT_EQ(copy.size(), 65U);
  EXPECT_EQ(copy[63], 0);
  EXPECT_EQ(copy[64], 0);
}

}  // namespace
}  // namespace handoff::epp
