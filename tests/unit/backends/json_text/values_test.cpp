#include "backends/json_text/values.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace handoff::json_text {
namespace {

std::vector<std::string> all_items(std::string_view list) {
  Items items(list);
  std::vector<std::string> out;
  while (const auto item = items.next()) out.emplace_back(*item);
  return out;
}

TEST(FindMember, FindsTheLastOfThatNameAtTheTop) {
  EXPECT_EQ(find_member(R"({"a":1,"b":{"a":2}})", "a"), "1");
  EXPECT_EQ(find_member(R"( { "a" : 1 , "a" : [2,"]"] } )", "a"), R"([2,"]"])");
  EXPECT_EQ(find_member(R"({"ab":1,"b":"}\"{"})", "b"), R"("}\"{")");
  EXPECT_FALSE(find_member(R"({"b":{"a":2}})", "a"));
  EXPECT_FALSE(find_member(R"(["a",1])", "a"));
  EXPECT_FALSE(find_member("", "a"));
}

TEST(FindMember, FindsNamesHoweverTheyAreSpelled) {
  EXPECT_EQ(find_member(R"({"\u006e":2})", "n"), "2");
  EXPECT_EQ(find_member(R"({"n":1,"\u006E":2})", "n"), "2");
  EXPECT_EQ(find_member(R"({"\u0065rr\u006fr":3})", "error"), "3");
  EXPECT_FALSE(find_member(R"({"\u006em":2,"\u006":3,"\u00zz":4,"\n":5,"\\u006e":6,"n\u006e":7})", "n"));
}

TEST(FindMember, TakesAnyBytes) {
  std::mt19937 random(11);
  constexpr std::string_view kAlphabet = "{}[]\",:\\a1 \n";
  for (int round = 0; round < 20000; ++round) {
    std::string text = "{";
    for (int i = 0; i < 24; ++i) text += kAlphabet[random() % kAlphabet.size()];
    const auto found = find_member(text, "a");
    if (found) {
      EXPECT_LE(found->data() + found->size(), text.data() + text.size());
    }
    for (const auto& item : all_items("[" + text)) EXPECT_FALSE(item.empty());
  }
}

TEST(Items, AreCutAtTheTop) {
  EXPECT_EQ(all_items(R"([1, "a,b" , [2,3],{"c":[4]},null])"),
            (std::vector<std::string>{"1", R"("a,b")", "[2,3]", R"({"c":[4]})", "null"}));
  EXPECT_TRUE(all_items("[]").empty());
  EXPECT_TRUE(all_items("{}").empty());
  EXPECT_EQ(all_items("[1,2").size(), 2U);
  EXPECT_EQ(all_items("[1 2]").size(), 1U);
}

TEST(PlainString, HasNoEscapes) {
  EXPECT_EQ(plain_string(R"("a b")"), "a b");
  EXPECT_FALSE(plain_string(R"("a\n")"));
  EXPECT_FALSE(plain_string("1"));
  EXPECT_FALSE(plain_string("\""));
}

}  // namespace
}  // namespace handoff::json_text
