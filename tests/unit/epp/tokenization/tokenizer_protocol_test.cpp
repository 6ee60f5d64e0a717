#include "epp/tokenization/tokenizer_protocol.hpp"

#include <gtest/gtest.h>

#include <string>

#include "epp/kv_index/block_hash.hpp"

namespace handoff::epp {
namespace {

TokenizeRequest chat(std::string body) {
  return {TokenizedApi::kChatCompletions, std::make_shared<const std::string>(std::move(body)), "m"};
}
TokenizeRequest completion(std::string body) {
  return {TokenizedApi::kCompletions, std::make_shared<const std::string>(std::move(body)), "m"};
}
TokenizerAsk ask(TokenizerKind kind, const TokenizeRequest& request) {
  TokenizerStep step = plan_tokenization(kind, request, 1);
  if (auto* found = std::get_if<TokenizerAsk>(&step)) return *found;
  ADD_FAILURE() << "nothing to ask";
  return {};
}
PromptKey key(const TokenizeRequest& request) {
  return ask(TokenizerKind::kVllmRender, request).key;
}

std::vector<TokenizedPrompt> tokens(std::string answer) {
  auto parsed = parse_tokens(answer);
  if (auto* wrong = std::get_if<std::string>(&parsed)) {
    ADD_FAILURE() << *wrong;
    return {};
  }
  return std::get<std::vector<TokenizedPrompt>>(std::move(parsed));
}
bool is_bad(std::string answer) {
  return std::holds_alternative<std::string>(parse_tokens(answer));
}

TEST(TokenizationPlan, SendsVllmTheBodyAsItIs) {
  const auto request = chat(R"({"messages":[{"role":"user","content":"x"}],"stream":true})");
  const TokenizerAsk chat_ask = ask(TokenizerKind::kVllmRender, request);
  EXPECT_EQ(chat_ask.path, "/v1/chat/completions/render");
  EXPECT_EQ(chat_ask.body, request.body);
  EXPECT_EQ(ask(TokenizerKind::kVllmRender, completion(R"({"prompt":"x"})")).path, "/v1/completions/render");
  EXPECT_EQ(ask(TokenizerKind::kSglangRenderer, request).path, "/v1/chat/completions/render");
}

TEST(TokenizationPlan, SendsSglangsTokenizeWhatItKnows) {
  const TokenizerAsk one = ask(
      TokenizerKind::kSglangTokenize,
      chat(
          R"({"model":"m","messages": [ 1 ],"max_tokens":1,"tools":[],"chat_template_kwargs":{"a":1},"x":2})"));
  EXPECT_EQ(one.path, "/v1/tokenize");
  EXPECT_EQ(*one.body, R"({"model":"m","messages":[ 1 ],"tools":[],"chat_template_kwargs":{"a":1}})");
  EXPECT_EQ(*ask(TokenizerKind::kSglangTokenize, completion(R"({"prompt":"a","prompt":["b"],"n":2})")).body,
            R"({"prompt":["b"]})");
  EXPECT_EQ(ask(TokenizerKind::kSglangRenderer, completion(R"({"prompt":"a"})")).path, "/v1/tokenize");
}

TEST(TokenizationPlan, KeyCoversThePromptAndNotTheSampling) {
  const PromptKey base = key(chat(R"({"model":"m","messages":[1]})"));
  EXPECT_EQ(base,
            key(chat(R"({"model":"m","messages":[1],"temperature":0.5,"max_tokens":3,"stream":true})")));
  EXPECT_EQ(base, key(chat(R"({"seed":1,"model":"m" ,  "cache_salt":"s","messages":[1],"user":"u"})")));
  for (const char* other : {R"({"model":"m","messages":[2]})", R"({"model":"n","messages":[1]})",
                            R"({"model":"m","messages":[1],"tools":[]})",
                            R"({"model":"m","messages":[1],"chat_template_kwargs":{}})",
                            R"({"model":"m","messages":[1],"something_new":1})"})
    EXPECT_NE(base, key(chat(other))) << other;
  EXPECT_NE(key(chat(R"({"messages":[1],"prompt":"x"})")),
            key(completion(R"({"messages":[1],"prompt":"x"})")));
  // Members can't be shifted into each other.
  EXPECT_NE(key(chat(R"({"messages":1,"ab":2})")), key(chat(R"({"messages":1,"a":2})")));
}

TEST(TokenizationPlan, TakesTokenIdsFromTheRequest) {
  const auto at_hand = [](const char* body) {
    TokenizerStep step = plan_tokenization(TokenizerKind::kVllmRender, completion(body), 1);
    auto* tokens = std::get_if<TokensAtHand>(&step);
    return tokens ? tokens->prompts : std::vector<TokenizedPrompt>();
  };
  ASSERT_EQ(at_hand(R"({"prompt":[1, 2 ,4294967295]})").size(), 1U);
  EXPECT_EQ(at_hand(R"({"prompt":[1, 2 ,4294967295]})")[0].token_ids,
            (std::vector<std::uint32_t>{1, 2, 4294967295}));
  const auto two = at_hand(R"({"prompt":[ [1], [2,3] ]})");
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[1].token_ids, (std::vector<std::uint32_t>{2, 3}));
  for (const char* text :
       {R"({"prompt":"[1]"})", R"({"prompt":"x[[1],[2]]"})", R"({"prompt":["[1]"]})", R"({"prompt":[1,"a"]})",
        R"({"prompt":[4294967296]})", R"({"prompt":[-1]})", R"({"prompt":[1.5]})"})
    EXPECT_TRUE(at_hand(text).empty()) << text;
}

TEST(TokenizationPlan, AsksNothingAboutWhatHasNoPrompt) {
  for (const auto& request : {chat("[]"), chat("{"), chat(R"({"prompt":"x"})"),
                              completion(R"({"messages":[]})"), TokenizeRequest{}}) {
    TokenizerStep step = plan_tokenization(TokenizerKind::kVllmRender, request, 1);
    const auto* failure = std::get_if<TokenizeFailure>(&step);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->error, TokenizeError::kRefused);
  }
}

TEST(TokenizationPlan, ReplacesTheModelInPlace) {
  EXPECT_EQ(with_model(R"({"a":1e400,"model" : "lora","b":[]})", "base"),
            R"({"a":1e400,"model" : "base","b":[]})");
  EXPECT_EQ(with_model(R"({"model":"x"})", "a\"b"), R"({"model":"a\"b"})");
  EXPECT_EQ(with_model(R"({"a":1})", "base"), "");
}

TEST(TokenizerAnswer, IsReadInEveryShape) {
  using Ids = std::vector<std::uint32_t>;
  EXPECT_EQ(tokens(R"({"request_id":"x","token_ids":[1,2],"sampling_params":{"a":[3]},"features":null})")[0]
                .token_ids,
            (Ids{1, 2}));
  EXPECT_EQ(tokens(R"({"input_ids":[4294967295]})")[0].token_ids, (Ids{4294967295}));
  EXPECT_EQ(tokens(R"({"tokens":[5],"count":1,"max_model_len":9223372036854775807})")[0].token_ids, (Ids{5}));
  const auto list = tokens(R"([{"token_ids":[1]},{"token_ids":[2,3]}])");
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[1].token_ids, (Ids{2, 3}));
  const auto lists = tokens(R"({"tokens":[[1],[],[2,3]],"count":[1,0,2]})");
  ASSERT_EQ(lists.size(), 3U);
  EXPECT_EQ(lists[2].token_ids, (Ids{2, 3}));
  EXPECT_TRUE(tokens(R"({"token_ids":[]})")[0].token_ids.empty());
}

TEST(TokenizerAnswer, TellsWhereMediaStand) {
  const std::string hash(64, 'a');
  const auto prompts =
      tokens(R"({"features":{"mm_hashes":{"image":[")" + hash +
             R"(","other"]},"mm_placeholders":{"image":[{"offset":9,"length":4},{"length":2,"offset":3}]},)"
             R"("kwargs_data":null},"token_ids":[1]})");
  ASSERT_EQ(prompts[0].media.size(), 2U);
  EXPECT_EQ(prompts[0].media[0].offset, 3U);
  EXPECT_EQ(prompts[0].media[0].id, media_id("other", true));
  EXPECT_EQ(prompts[0].media[1].offset, 9U);
  EXPECT_EQ(prompts[0].media[1].length, 4U);
  EXPECT_EQ(prompts[0].media[1].id, media_id(hash, true));
  // What does not fit together is left out.
  EXPECT_TRUE(tokens(R"({"features":{"mm_hashes":{"image":["a"]}},"token_ids":[1]})")[0].media.empty());
}

TEST(TokenizerAnswer, IsRefusedWhenItIsSomethingElse) {
  for (const char* text :
       {"", "null", "3", "[]", "{}", "[3]", "[{}]", R"({"token_ids":null})", R"({"token_ids":"x"})",
        R"({"token_ids":["x"]})", R"({"token_ids":[-1]})", R"({"token_ids":[4294967296]})",
        R"({"token_ids":[1.5]})", R"({"token_ids":[1)", R"({"tokens":[[1],2]})", R"({"tokens":[1,[2]]})",
        "<html>", R"([{"token_ids":[1]},3])"})
    EXPECT_TRUE(is_bad(text)) << text;
}

TEST(TokenizerAnswer, MayBeLong) {
  std::string answer = R"({"token_ids":[0)";
  for (int i = 1; i < 100'000; ++i) answer += "," + std::to_string(i);
  const auto prompts = tokens(answer + "]}");
  ASSERT_EQ(prompts.size(), 1U);
  ASSERT_EQ(prompts[0].token_ids.size(), 100'000U);
  EXPECT_EQ(prompts[0].token_ids.back(), 99'999U);
}

}  // namespace
}  // namespace handoff::epp
