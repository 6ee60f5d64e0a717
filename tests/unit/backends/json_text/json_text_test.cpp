#include "backends/json_text/json_text.hpp"

#include "backends/json_text/first_event.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace handoff::json_text {
namespace {

using Json = nlohmann::json;

TEST(JsonText, PromptsAreCountedLikeAParserWould) {
  std::mt19937 random(12);
  constexpr std::string_view kBytes = "[[]],,\"\"\"\\a1 {}";
  int several = 0;
  for (int round = 0; round < 300'000; ++round) {
    std::string text = "[";
    const auto size = random() % 12;
    for (std::size_t i = 0; i < size; ++i) text += kBytes[random() % kBytes.size()];
    text += "]";
    const auto count = count_prompts(text);
    const auto prompts = Json::parse(text, nullptr, false);
    if (!prompts.is_array()) continue;  // survived
    const bool lists = !prompts.empty() && (prompts[0].is_string() || prompts[0].is_structured());
    ASSERT_EQ(count == PromptCount::several, lists && prompts.size() > 1) << text;
    several += count == PromptCount::several ? 1 : 0;
  }
  EXPECT_GT(several, 100);
}

TEST(JsonText, ReadsNothingPastTheEnd) {
  const std::string text = R"([["a\"b\\",{"c":[1]}],"d"])";
  for (std::size_t size = 0; size <= text.size(); ++size) {
    const auto part = std::make_unique<char[]>(size);  // a sanitizer sees one byte too many
    text.copy(part.get(), size);
    const std::string_view view(part.get(), size);
    count_prompts(view);
    Cursor(view).take_plain_integers();
    is_empty_object(view);
    reads_as_one(view);
    plain_integer(view, 9);
  }
}

TEST(JsonText, ManyPromptsOfQuotesTakeLinearTime) {
  std::string text = "[\"";
  for (int i = 0; i < 2'000'000; ++i) text += "\\\"";
  text += "\",\"b\"]";
  EXPECT_EQ(count_prompts(text), PromptCount::several);
}

TEST(JsonText, ReadsOneInEverySpelling) {
  for (const auto* one : {"1", "1.0", "1e0", "10e-1", "\"1\""}) EXPECT_TRUE(reads_as_one(one)) << one;
  for (const auto* other : {"", "2", "0", "-1", "1.5", "true", "\"\"", "\"2\"", "\"", "[1]", "NaN", "1 "}) {
    EXPECT_FALSE(reads_as_one(other)) << other;
  }
}

TEST(JsonText, ReadsTrueInEverySpelling) {
  for (const auto* yes : {"true", "1", "1.0", "\"1\"", "\"True\"", "\"ON\"", "\"y\""})
    EXPECT_TRUE(reads_as_true(yes)) << yes;
  EXPECT_TRUE(reads_as_true(R"("\u0074rue")"));
  for (const auto* no :
       {"", "false", "0", "2", "null", "\"\"", "\"no\"", "\"truer\"", "\"1.0\"", "\"", "[]", "{}"}) {
    EXPECT_FALSE(reads_as_true(no)) << no;
  }
}

TEST(JsonText, PlainIntegersOnly) {
  EXPECT_EQ(plain_integer("0", 10), 0);
  EXPECT_EQ(plain_integer("10", 10), 10);
  for (const auto* other : {"", "11", "-1", "+1", "01", "1.0", "1e0", "\"1\"", "99999999999999999999"}) {
    EXPECT_EQ(plain_integer(other, 10), -1) << other;
  }
}

TEST(FirstEvent, IsFoundHoweverTheStreamIsCut) {
  const std::string stream = ": hello\r\ndata: {\"a\":1}\r\n\r\ndata: {\"b\":2}\n\n";
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    FirstEvent event;
    const bool first = event.take(std::string_view(stream).substr(0, cut));
    const bool second = event.take(std::string_view(stream).substr(cut));
    EXPECT_NE(first, second) << "told once";
    EXPECT_EQ(event.data(), " {\"a\":1}");
  }
}

TEST(FirstEvent, WhatIsNoEventHasNoData) {
  FirstEvent open;
  EXPECT_FALSE(open.take("data: {\"a\""));
  FirstEvent other;
  EXPECT_TRUE(other.take("{\"metadata: 1}\n"));
  EXPECT_EQ(other.data(), "");
  FirstEvent large;
  EXPECT_TRUE(large.take(std::string(100'000, 'x')));
  EXPECT_EQ(large.data(), "");
}

}  // namespace
}  // namespace handoff::json_text
