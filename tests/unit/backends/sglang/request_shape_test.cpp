// Which requests are split, as how many items, and which are refused: S10 to S15.
#include "tests/unit/backends/sglang/sglang_case.hpp"

namespace handoff::plugin_test {
namespace {

class SglangRequestShape : public SglangCase {
 protected:
  /// Items of the rooms; 0: no list.
  std::size_t items(std::string_view path, std::string body) {
    const auto room = member(prefill_leg(path, std::move(body)), "bootstrap_room");
    return room.is_array() ? room.size() : 0;
  }
  Action refusal(std::string_view path, std::string body) {
    const auto exchange = begin(path, std::move(body));
    EXPECT_TRUE(of_kind(exchange->begin_actions(), Action::Kind::start).empty());
    return only(exchange->begin_actions(), Action::Kind::fail);
  }
};

TEST_F(SglangRequestShape, WithoutPrefillTheEngineAnswersAlone) {
  auto request = Request{.path = std::string(kChat), .body = kChatBody};
  request.prefill.reset();
  const Exchange exchange(backend_, request);
  EXPECT_EQ(only(exchange.begin_actions(), Action::Kind::decode_only).reason, "no_prefill_endpoint");
}

TEST_F(SglangRequestShape, PromptsAndListsAreTold) {
  EXPECT_EQ(items(kChat, kChatBody), 0U);
  EXPECT_EQ(items(kCompletions, R"({"prompt":"a"})"), 0U);
  EXPECT_EQ(items(kCompletions, R"({"prompt":[1,2,3]})"), 0U);
  EXPECT_EQ(items(kCompletions, R"({"prompt":["a"]})"), 1U);
  EXPECT_EQ(items(kCompletions, R"({"prompt":["a","b,]c"]})"), 2U);
  EXPECT_EQ(items(kCompletions, R"({"prompt":[[1,2],[3]]})"), 2U);
  EXPECT_EQ(items(kGenerate, R"({"text":"a"})"), 0U);
  EXPECT_EQ(items(kGenerate, R"({"text":["a"]})"), 1U);
  EXPECT_EQ(items(kGenerate, R"({"input_ids":[1,2]})"), 0U);
  EXPECT_EQ(items(kGenerate, R"({"input_ids":[[1,2],[3],[4]]})"), 3U);
  EXPECT_EQ(items(kGenerate, R"({"input_embeds":[[0.5,1.5],[2.5,3.5]]})"), 0U);
  EXPECT_EQ(items(kGenerate, R"({"input_embeds":[[[0.5]],[[1.5]]]})"), 2U);
  EXPECT_EQ(items(kGenerate, R"({"text":"a","input_ids":[[1],[2]]})"), 0U);
  EXPECT_EQ(items(kGenerate, R"({"text":null,"input_ids":[[1],[2]]})"), 2U);
  EXPECT_EQ(items(kGenerate, R"({"text":[]})"), 0U);
}

TEST_F(SglangRequestShape, SamplesThatWouldShareARoomAreRefused) {
  for (const std::string n : {"2", "3.0", "\"2\"", "0", "-1", "[1]", "{}"}) {
    const auto chat = refusal(kChat, R"({"messages":[],"n":)" + n + "}");
    EXPECT_EQ(chat.status, 400U);
    EXPECT_EQ(chat.code, "unsupported_pd_request");
    EXPECT_EQ(refusal(kCompletions, R"({"prompt":"a","n":)" + n + "}").status, 400U);
    EXPECT_EQ(refusal(kGenerate, R"({"text":"a","sampling_params":{"n":)" + n + "}}").status, 400U);
  }
  EXPECT_EQ(refusal(kGenerate, R"({"text":["a","b"],"sampling_params":[{"n":1},{"n":2}]})").status, 400U);
}

// Engines read them as they read any other spelling, and two samples in one room end both of them.
TEST_F(SglangRequestShape, SamplesAreFoundHoweverTheirNameIsSpelled) {
  for (const std::string params :
       {R"({"\u006e":2})", R"({"n":1,"\u006e":2})", R"([{"n":1},{"n":1,"\u006E":2}])"}) {
    EXPECT_EQ(refusal(kGenerate, R"({"text":"a","sampling_params":)" + params + "}").status, 400U) << params;
  }
  EXPECT_EQ(refusal(kGenerate, R"({"text":"a","s\u0061mpling_params":{"n":2}})").status, 400U);
  EXPECT_EQ(refusal(kChat, R"({"messages":[],"\u006e":2})").status, 400U);
}

TEST_F(SglangRequestShape, OneSampleIsSplitHoweverItIsSpelled) {
  for (const std::string n : {"1", "1.0", "null", "\"1\""}) {
    EXPECT_EQ(items(kChat, R"({"messages":[],"n":)" + n + "}"), 0U) << n;
    EXPECT_EQ(items(kGenerate, R"({"text":"a","sampling_params":{"n":)" + n + "}}"), 0U) << n;
  }
}

TEST_F(SglangRequestShape, ApisWithoutARoomAreRefused) {
  for (const auto* path : {"/v1/responses", "/v1/messages"}) {
    const auto action = refusal(path, R"({"input":"a"})");
    EXPECT_EQ(action.status, 400U);
    EXPECT_EQ(action.code, "unsupported_pd_request");
    EXPECT_NE(action.message.find("bootstrap room"), std::string::npos);
  }
}

TEST_F(SglangRequestShape, HugeBatchesAreRefusedAndTheLargestAllowedIsNot) {
  std::string list = "\"a\"";
  for (int i = 1; i < 1024; ++i) list += ",\"a\"";
  EXPECT_EQ(items(kGenerate, R"({"text":[)" + list + "]}"), 1024U);
  EXPECT_EQ(refusal(kGenerate, R"({"text":[)" + list + ",\"a\"]}").code, "unsupported_pd_request");
}

TEST_F(SglangRequestShape, WhatIsNoObjectIsRefused) {
  EXPECT_EQ(refusal(kChat, "[1]").code, "invalid_pd_request");
  EXPECT_EQ(refusal(kChat, "").code, "invalid_pd_request");
}

}  // namespace
}  // namespace handoff::plugin_test
