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
    }
  }
}

TEST(ByteBlock, EveryByteIsMarkedAlikeAtEveryPlace) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (std::size_t place = 0; place < kWideSize; ++place) {
      std::array<char, kWideSize> bytes{};
      bytes.fill('7');
      bytes.at(place) = static_cast<char>(byte);
      const Marks quick = marks(bytes.data());
      const Marks slow = portable::marks(bytes.data());
      ASSERT_EQ(quick.quotes, slow.quotes) << byte;
      ASSERT_EQ(quick.brackets, slow.brackets) << byte;
      ASSERT_EQ(quick.backslashes, slow.backslashes) << byte;
      const bool is_bracket = byte == '[' || byte == ']' || byte == '{' || byte == '}';
      ASSERT_EQ(quick.brackets, is_bracket ? std::uint64_t{1} << place : 0) << byte;
    }
  }
}

TEST(ByteBlock, BytesArePlainUnlessOneIsStructural) {
  std::array<char, kWideSize> bytes{};
  bytes.fill(',');
  EXPECT_TRUE(are_plain(bytes.data()));
  for (const char structural : {'"', '[', ']', '{', '}'}) {
    for (std::size_t place = 0; place < bytes.size(); ++place) {
      auto marked = bytes;
      marked.at(place) = structural;
      ASSERT_FALSE(are_plain(marked.data())) << structural << place;
    }
  }
}

}  // namespace
}  // namespace handoff::json::block
