#include "shared/json/byte_block.hpp"

#include <gtest/gtest.h>

#include <array>

namespace handoff::json::block {
namespace {

TEST(ByteBlock, EveryByteIsClassifiedAlikeAtEveryPlace) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (std::size_t place = 0; place < kSize; ++place) {
      std::array<char, kSize> bytes{};
      bytes.fill('7');
      bytes.at(place) = static_cast<char>(byte);
      ASSERT_EQ(quotes(bytes.data()), portable::quotes(bytes.data())) << byte;
      ASSERT_EQ(quotes_and_backslashes(bytes.data()), portable::quotes_and_backslashes(bytes.data())) << byte;
      ASSERT_EQ(quotes_and_brackets(bytes.data()), portable::quotes_and_brackets(bytes.data())) << byte;
    }
  }
}

TEST(ByteBlock, FourBlocksArePlainUnlessOneByteIsStructural) {
  std::array<char, 4 * kSize> bytes{};
  bytes.fill(',');
  EXPECT_TRUE(four_are_plain(bytes.data()));
  for (const char structural : {'"', '[', ']', '{', '}'}) {
    for (std::size_t place = 0; place < bytes.size(); ++place) {
      auto marked = bytes;
      marked.at(place) = structural;
      ASSERT_FALSE(four_are_plain(marked.data())) << structural << place;
    }
  }
}

}  // namespace
}  // namespace handoff::json::block
