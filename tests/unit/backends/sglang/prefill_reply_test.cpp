// Prefill replies of status 200 that are none: S20 to S24.
#include "tests/unit/backends/sglang/sglang_case.hpp"

namespace handoff::plugin_test {
namespace {

class SglangPrefillReply : public SglangCase {
 protected:
  /// The failure that this reply causes; empty: it is good.
  std::string defect(std::string_view path, std::string body, std::string reply) {
    const auto exchange = begin(path, std::move(body));
    const auto prefill = leg(exchange->begin_actions(), HANDOFF_ROLE_PREFILL);
    const auto decode = leg(exchange->begin_actions(), HANDOFF_ROLE_DECODE);
    const auto actions = exchange->deliver(leg_done(prefill.id, 200, std::move(reply)));
    const auto failures = of_kind(actions, Action::Kind::fail);
    if (failures.empty()) return {};
    EXPECT_EQ(failures.front().code, "invalid_prefill_handoff");
    EXPECT_EQ(failures.front().status, 502U);
    EXPECT_EQ(aborted(actions, HANDOFF_TARGET_LOCAL).front(),
              member(decode, "rid").is_array() ? member(decode, "rid").at(0) : member(decode, "rid"));
    return failures.front().message;
  }
};

TEST_F(SglangPrefillReply, OrdinaryEndsAreGood) {
  for (const std::string end : {"stop", "length", "tool_calls", "function_call", "content_filter"}) {
    EXPECT_EQ(defect(kChat, kChatBody, R"({"choices":[{"finish_reason":")" + end + R"("}],"error":null})"),
              "");
  }
  EXPECT_EQ(defect(kGenerate, R"({"text":"a"})",
                   R"({"text":"b","meta_info":{"finish_reason":{"type":"length","length":1}}})"),
            "");
  EXPECT_EQ(
      defect(
          kGenerate, R"({"text":["a","b"]})",
          R"([{"meta_info":{"finish_reason":{"type":"length"}}},{"meta_info":{"finish_reason":{"type":"stop"}}}])"),
      "");
}

TEST_F(SglangPrefillReply, ErrorsAndAbortsInsideA200AreFailures) {
  for (const std::string reply :
       {R"({"choices":[{"finish_reason":"abort"}]})", R"({"choices":[{"finish_reason":null}]})",
        R"({"choices":[{}]})", R"({"choices":[]})", R"({"choices":null})", R"({})",
        R"({"choices":[{"finish_reason":"stop"}],"error":{"message":"x"}})",
        R"({"object":"error","message":"x","choices":[{"finish_reason":"stop"}]})",
        R"({"choices":[{"finish_reason":"stop"},{"finish_reason":"stop"}]})", "", "null", "[]",
        "{\"choices\":[{", "data: {\"choices\":[]}\n\ndata: [DONE]\n\n"}) {
    EXPECT_NE(defect(kChat, kChatBody, reply), "") << reply;
  }
}

TEST_F(SglangPrefillReply, GenerateIsReadInItsOwnForm) {
  const std::string single = R"({"text":"a"})";
  EXPECT_NE(defect(kGenerate, single, R"({"meta_info":{"finish_reason":{"type":"abort","message":"x"}}})"),
            "");
  EXPECT_NE(defect(kGenerate, single, R"({"meta_info":{"finish_reason":"length"}})"), "");
  EXPECT_NE(defect(kGenerate, single, R"({"meta_info":{}})"), "");
  EXPECT_NE(defect(kGenerate, single, R"([{"meta_info":{"finish_reason":{"type":"stop"}}}])"), "");
  const std::string batch = R"({"text":["a","b"]})";
  EXPECT_NE(defect(kGenerate, batch, R"([{"meta_info":{"finish_reason":{"type":"stop"}}}])"), "");
  EXPECT_NE(
      defect(
          kGenerate, batch,
          R"([{"meta_info":{"finish_reason":{"type":"stop"}}},{"meta_info":{"finish_reason":{"type":"abort"}}}])"),
      "");
}

TEST_F(SglangPrefillReply, NothingOfItIsShown) {
  EXPECT_EQ(defect(kChat, kChatBody, R"({"error":{"message":"secret prompt"}})").find("secret"),
            std::string::npos);
}

}  // namespace
}  // namespace handoff::plugin_test
