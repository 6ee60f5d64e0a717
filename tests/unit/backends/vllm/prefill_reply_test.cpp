// What a prefill reply counts as. Case numbers as in backends/vllm/PROTOCOL.md.
#include <nlohmann/json.hpp>

#include "tests/unit/backends/vllm/vllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using Json = nlohmann::ordered_json;

class VllmPrefillReply : public VllmCase {
 protected:
  void expect_missing(const std::string& reply, std::string_view reason) {
    const auto before = host_.counts[std::string(reason)];
    const auto action = after_reply(reply);
    EXPECT_EQ(action.kind, Action::Kind::decode_only) << reply << action.message;
    EXPECT_EQ(action.reason, reason) << reply;
    EXPECT_EQ(host_.counts[std::string(reason)], before + 1) << reply;
    ASSERT_FALSE(host_.warnings.empty());
    EXPECT_EQ(host_.warnings.back().first, reason);
  }
  void expect_invalid(const std::string& reply, std::string_view names) {
    const auto action = after_reply(reply);
    EXPECT_EQ(action.kind, Action::Kind::fail) << reply;
    EXPECT_EQ(action.status, 502U) << reply;
    EXPECT_EQ(action.code, "invalid_prefill_handoff") << reply;
    EXPECT_NE(action.message.find(names), std::string::npos) << action.message << " for " << reply;
    EXPECT_EQ(action.leg_id, 1U);
  }
  void expect_valid(const std::string& params) {
    const auto action = after_reply(reply_with(params));
    EXPECT_EQ(action.kind, Action::Kind::start) << params << action.message << action.reason;
    EXPECT_EQ(action.leg.body, R"({"messages":[],"kv_transfer_params":)" + params + "}");
  }
  /// The usual handoff with one field exchanged or, with "", left out.
  static std::string handoff_with(const std::string& field, const std::string& value) {
    auto params = Json::parse(kHandoff);
    params.erase(field);
    auto text = params.dump();
    if (value.empty()) return text;
    text.insert(text.size() - 1, ",\"" + field + "\":" + value);
    return text;
  }
};

// C09
TEST_F(VllmPrefillReply, WithoutAHandoffRunsDecodeOnly) {
  expect_missing(R"({"id":"a","choices":[]})", "missing_handoff");
  expect_missing("{}", "missing_handoff");
  expect_missing(reply_with("null"), "missing_handoff");
  expect_missing(reply_with("{ }"), "missing_handoff");
  expect_missing(reply_with(R"({"num_lmcache_extra_cached_tokens":3})"), "not_a_handoff");
  for (const std::string value : {"false", "null", "1", "\"true\"", "{}", ""}) {
    expect_missing(reply_with(handoff_with("do_remote_prefill", value)), "not_a_handoff");
  }
  EXPECT_NE(host_.warnings.front().second.find("--kv-transfer-config"), std::string::npos);
}

TEST_F(VllmPrefillReply, OfAnotherTypeIsInvalid) {
  for (const std::string value : {"\"a\"", "[]", "[{}]", "7", "true", "NaN"}) {
    expect_invalid(reply_with(value), "kv_transfer_params");
  }
}

// C10
TEST_F(VllmPrefillReply, WithADefectIsInvalidAndNamesTheField) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> defects{
      {"do_remote_decode", {"", "null", "true", "0", "\"false\""}},
      {"remote_block_ids", {"",        "null",      "{}",      "\"a\"",   "7",     "[null]",   "[\"1\"]",
                            "[[1],2]", "[1,[2]]",   "[[[1]]]", "[[1.0]]", "[1e2]", "[[-1]]",   "[true]",
                            "[{}]",    "[[\"1\"]]", "[01]",    "[[1,]]",  "[[1]",  "[[1]],2]", "[1 2]"}},
      {"remote_engine_id", {"", "null", "\"\"", "7", "[]"}},
      {"remote_request_id", {"", "null", "\"\"", "7", "{}"}},
      {"remote_host", {"", "null", "\"\"", "7", "false"}},
      {"tp_size", {"0", "-1", "2.5", "\"1\"", "true", "[1]"}},
      {"remote_num_tokens", {"-1", "37.5", "\"37\"", "{}"}},
      {"remote_port", {"", "null", "0", "-1", "65536", "70000", "\"5600\"", "5600.0", "5e3", "true"}},
  };
  for (const auto& [field, values] : defects) {
    for (const auto& value : values) {
      const auto params = handoff_with(field, value);
      if (value == "[[1]" || value == "[[1]],2]") continue;  // breaks the whole reply: C17
      expect_invalid(reply_with(params), field);
    }
  }
  EXPECT_TRUE(host_.warnings.empty());
  EXPECT_GT(host_.counts["invalid_handoff"], 0);
}

// C11, C12, C40
TEST_F(VllmPrefillReply, WithBlockIdsOfEitherFormIsForwarded) {
  for (const std::string ids : {"[[1,2],[3]]", "[[]]", "[[],[]]", "[ [ 0 , 12 ] , [ ] ]", "[1,2,3]", "[0]"}) {
    expect_valid(handoff_with("remote_block_ids", ids));
  }
}
TEST_F(VllmPrefillReply, OfAnOldReleaseNeedsNoRequestId) {
  for (const std::string id : {"", "null"}) {
    auto params = handoff_with("remote_request_id", id);
    params.replace(params.find("[[12,13],[]]"), 12, "[12,13]");
    expect_valid(params);
  }
  auto params = handoff_with("remote_request_id", "7");
  params.replace(params.find("[[12,13],[]]"), 12, "[12,13]");
  expect_invalid(reply_with(params), "remote_request_id");
}

// C39
TEST_F(VllmPrefillReply, WithEmptyBlockIdsIsNeverForwarded) {
  expect_missing(reply_with(handoff_with("remote_block_ids", "[]")), "empty_handoff");
  expect_missing(reply_with(handoff_with("remote_block_ids", "[ ]")), "empty_handoff");
  expect_missing(reply_with(R"({"do_remote_prefill":true,"remote_block_ids":[]})"), "empty_handoff");
}

// C17
TEST_F(VllmPrefillReply, ThatIsNoJsonObjectIsInvalid) {
  for (const std::string reply : {"", "null", "[]", "oops", "data: {\"id\":1}\n\ndata: [DONE]\n\n",
                                  "{\"kv_transfer_params\":{\"do_remote",
                                  "{\"kv_transfer_params\":{\"remote_block_ids\":[[1]}", "\x1f\x8b\x08"}) {
    expect_invalid(reply, "not a JSON object");
  }
}

// The last member of a name is the one that engines take.
TEST_F(VllmPrefillReply, IsReadAsAnEngineWouldRepeatedNames) {
  expect_missing(R"({"kv_transfer_params":)" + kHandoff + R"(,"kv_transfer_params":null})",
                 "missing_handoff");
  const auto action = after_reply(R"({"kv_transfer_params":null,"kv_transfer_params":)" + kHandoff + "}");
  EXPECT_EQ(action.kind, Action::Kind::start);
}

// Never the engine's words: they may quote the prompt.
TEST_F(VllmPrefillReply, IsNotQuoted) {
  const auto action = after_reply(reply_with(handoff_with("remote_port", "\"secret-prompt\"")));
  EXPECT_EQ(action.message.find("secret"), std::string::npos);
}

class VllmPrefillReplyStrict : public VllmCase {
 protected:
  VllmPrefillReplyStrict() : VllmCase({{"DYN_SIDECAR_ON_MISSING_HANDOFF", "error"}}) {}
};

// C38
TEST_F(VllmPrefillReplyStrict, WithoutAHandoffIsAnError) {
  for (const std::string params : {"null", "{}", R"({"a":1})"}) {
    const auto action = after_reply(reply_with(params));
    EXPECT_EQ(action.kind, Action::Kind::fail);
    EXPECT_EQ(action.status, 502U);
    EXPECT_EQ(action.code, "missing_prefill_handoff");
    EXPECT_EQ(action.leg_id, 1U);
  }
  EXPECT_EQ(host_.warnings.size(), 3U);
}

}  // namespace
}  // namespace handoff::plugin_test
