#include "backends/json_text/integer_list.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backends/json_text/json_text.hpp"

namespace handoff::json_text {
namespace {

/// On the heap and to the byte, so that a sanitizer sees a read past the end.
bool is_list(const std::string& text) {
  const std::unique_ptr<char[]> exact(new char[text.size()]);
  text.copy(exact.get(), text.size());
  return is_compact_integer_list({exact.get(), text.size()});
}

std::string numbers(std::size_t count) {
  std::string out = "[";
  for (std::size_t i = 0; i < count; ++i) out += (i > 0 ? "," : "") + std::to_string(i * 7919 % 100003);
  return out + "]";
}

TEST(CompactIntegerList, ListsOfEveryLength) {
  for (std::size_t count = 1; count < 80; ++count) EXPECT_TRUE(is_list(numbers(count))) << count;
  EXPECT_TRUE(is_list("[0]"));
  EXPECT_TRUE(is_list("[0,0,10,100]"));
}

TEST(CompactIntegerList, WhatIsNoneInAnyPlace) {
  for (const std::string bad : {"",        "[",    "]",    "[]",      "1,2",    "[1",     "1]",    "[01]",
                                "[00]",    "[1,]", "[,1]", "[,]",     "[1,,2]", "[-1]",   "[1.0]", "[1 ]",
                                "[1,[2]]", "{1}",  "[1]]", "[\"1\"]", "[1e3]",  "[1,02]", "[\xb1]"}) {
    EXPECT_FALSE(is_list(bad)) << bad;
  }
  for (std::size_t count = 4; count < 30; ++count) {
    const auto good = numbers(count);
    for (std::size_t at = 1; at + 1 < good.size(); ++at) {
      for (const char c : {' ', '.', '-', '[', ']', '/', ':', '\0', '\x7f', '\xb0', '\xff', 'a'}) {
        auto bad = good;
        bad[at] = c;
        EXPECT_FALSE(is_list(bad)) << bad;
      }
    }
  }
}

/// As the cursor reads it, a token after the other.
bool reads_as_list(std::string text) {
  text.insert(1, " ");  // takes the long way
  Cursor cursor(text);
  return cursor.take_plain_integers() && cursor.only_space_left();
}

TEST(CompactIntegerList, AgreesWithTheCursor) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string text = "[";
    const auto size = 1 + random() % 40;
    while (text.size() <= size) text += "0123456789,,0"[random() % 13];
    text += "]";
    EXPECT_EQ(is_list(text), reads_as_list(text)) << text;
  }
}

}  // namespace
}  // namespace handoff::json_text
