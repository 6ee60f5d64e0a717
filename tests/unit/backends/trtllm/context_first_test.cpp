// The course of a request, context first. Case numbers as in backends/trtllm/PROTOCOL.md.
#include <nlohmann/json.hpp>

#include <set>

#include "tests/unit/backends/trtllm/trtllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kLost = HANDOFF_REUSED;
constexpr std::uint32_t kLostSent = HANDOFF_REUSED | HANDOFF_REQUEST_SENT;
const std::string kAsk = R"({"messages":[]})";

class ContextFirst : public TrtllmCase {
 protected:
  /// A chat request whose context phase is over and whose generation leg (id 2) runs.
  std::unique_ptr<Exchange> generating() {
    auto exchange = begin(kChat, kAsk);
    EXPECT_EQ(only(exchange->deliver(leg_done(1, 200, context_reply()))).leg.id, 2U);
    return exchange;
  }
};

// T01
TEST_F(ContextFirst, WithoutPrefillEndpointRunsDecodeOnly) {
  for (const std::string body : {R"({"n":3})", "not json", ""}) {
    const Exchange exchange(backend_, {.path = std::string(kChat), .body = body, .prefill = std::nullopt});
    const auto action = only(exchange.begin_actions());
    EXPECT_EQ(action.kind, Action::Kind::decode_only);
    EXPECT_EQ(action.reason, "no_prefill_endpoint");
  }
}

// T02
TEST_F(ContextFirst, AsksContextThenRelaysGeneration) {
  const auto exchange = begin(kChat, kAsk);
  const auto context = only(exchange->begin_actions()).leg;
  EXPECT_EQ(context.target, HANDOFF_TARGET_PREFILL);
  EXPECT_EQ(context.reply, HANDOFF_REPLY_COLLECT);
  EXPECT_EQ(context.flags, 0U) << "an id is used once";
  EXPECT_EQ(context.linger_ms, 0U) << "closed at once: nothing is handed over yet";
  EXPECT_EQ(context.path + context.method, "");

  const auto generation = only(exchange->deliver(leg_done(1, 200, context_reply()))).leg;
  EXPECT_EQ(generation.role, HANDOFF_ROLE_DECODE);
  EXPECT_EQ(generation.target, HANDOFF_TARGET_LOCAL);
  EXPECT_EQ(generation.reply, HANDOFF_REPLY_RELAY);
  EXPECT_EQ(generation.flags, HANDOFF_LEG_WANT_HEAD);
  EXPECT_EQ(generation.linger_ms, 30'000U) << "blocks may be on their way";

  EXPECT_TRUE(exchange->deliver(leg_done(2, 200, "")).empty());
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED, HANDOFF_REQUEST_SENT)).empty());
  EXPECT_EQ(host_.counts.count("unreleased"), 0U);
}

// T20, T21: rows of the failure matrix before the handoff
TEST_F(ContextFirst, FailuresOfContextAreTheSidecarsToTell) {
  for (const std::uint32_t status : {301U, 400U, 401U, 413U, 429U, 500U, 503U}) {
    const auto exchange = begin(kChat, kAsk);
    const auto action = only(exchange->deliver(leg_done(1, status, context_reply())));
    EXPECT_EQ(action.kind, Action::Kind::fail_with_leg) << status;
    EXPECT_EQ(action.leg_id, 1U);
  }
  for (std::uint32_t cause = HANDOFF_CAUSE_CONNECT; cause <= HANDOFF_CAUSE_OVERLOADED; ++cause) {
    const auto exchange = begin(kChat, kAsk);
    const auto action = only(exchange->deliver(leg_failed(1, cause, HANDOFF_REQUEST_SENT)));
    EXPECT_EQ(action.kind, Action::Kind::fail_with_leg) << cause;
    EXPECT_EQ(action.leg_id, 1U);
  }
}

// T22
TEST_F(ContextFirst, ClientThatLeavesBeforeTheHandoffStartsNoGeneration) {
  const auto exchange = begin(kChat, kAsk);
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)).empty());
  EXPECT_EQ(host_.counts.count("unreleased"), 0U);
}

// T23: nothing can be sent to free the blocks; the sidecar lets generation take them.
TEST_F(ContextFirst, ClientThatLeavesAfterTheHandoffAsksForNothing) {
  EXPECT_TRUE(generating()->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE, HANDOFF_REQUEST_SENT)).empty());
  EXPECT_TRUE(generating()->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)).empty()) << "the leg lingers";
  EXPECT_EQ(host_.counts.count("unreleased"), 0U);
}

// T24: a handoff that generation never got is counted.
TEST_F(ContextFirst, HandoffThatDidNotReachGenerationIsCounted) {
  const auto unreachable = generating();
  EXPECT_EQ(only(unreachable->deliver(leg_failed(2, HANDOFF_CAUSE_CONNECT))).kind,
            Action::Kind::fail_with_leg);
  EXPECT_EQ(host_.counts["unreleased"], 1);
  EXPECT_TRUE(unreachable->deliver(ended(HANDOFF_OUTCOME_ANSWERED)).empty());
  EXPECT_EQ(host_.counts["unreleased"], 1) << "once";
  generating()->deliver(ended(HANDOFF_OUTCOME_SHUTDOWN));
  EXPECT_EQ(host_.counts["unreleased"], 2);
  generating()->deliver(ended(HANDOFF_OUTCOME_SHUTDOWN, HANDOFF_REQUEST_SENT));
  EXPECT_EQ(host_.counts["unreleased"], 2);
  ASSERT_FALSE(host_.warnings.empty());
  EXPECT_EQ(host_.warnings.front().first, "unreleased");
}

// T25
// T58
TEST_F(ContextFirst, GenerationThatRefusesTheHandoffIsCounted) {
  for (const std::uint32_t status : {200U, 400U, 503U}) {
    const auto exchange = begin(kChat, kAsk);
    const auto generation = only(exchange->deliver(leg_done(1, 200, context_reply()))).leg;
    EXPECT_NE(generation.flags & HANDOFF_LEG_WANT_HEAD, 0U);
    EXPECT_TRUE(
        exchange->deliver({.kind = HANDOFF_EVENT_LEG_HEAD, .leg = 2, .status = status, .flags = 5}).empty());
  }
  EXPECT_EQ(host_.counts["generation_refused"], 2);
}

TEST_F(ContextFirst, GenerationThatFailsIsTold) {
  for (const auto cause : {HANDOFF_CAUSE_RESET, HANDOFF_CAUSE_READ_TIMEOUT, HANDOFF_CAUSE_MALFORMED}) {
    const auto exchange = generating();
    const auto action = only(exchange->deliver(leg_failed(2, cause, HANDOFF_REQUEST_SENT)));
    EXPECT_EQ(action.kind, Action::Kind::fail_with_leg);
    EXPECT_EQ(action.leg_id, 2U);
  }
  const auto exchange = generating();
  const auto flags = HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED | HANDOFF_CLIENT_STARTED | HANDOFF_REUSED;
  EXPECT_TRUE(exchange->deliver(leg_failed(2, HANDOFF_CAUSE_RESET, flags)).empty());
}

// T26: ids are good for one attempt, so everything is made anew, once.
TEST_F(ContextFirst, LegLostOnAKeptConnectionStartsOverWithAFreshId) {
  const auto id_of = [](const Leg& leg) {
    return Json::parse(leg.body)["disaggregated_params"]["disagg_request_id"].get<std::int64_t>();
  };
  for (const auto flags : {kLost, kLostSent}) {
    for (const bool in_generation : {false, true}) {
      const auto exchange = begin(kChat, kAsk);
      const auto first = exchange->begin_actions().at(0).leg;
      std::uint32_t leg = 1;
      if (in_generation) {
        exchange->deliver(leg_done(1, 200, context_reply()));
        leg = 2;
      }
      const auto again = only(exchange->deliver(leg_failed(leg, HANDOFF_CAUSE_RESET, flags))).leg;
      EXPECT_EQ(again.role, HANDOFF_ROLE_PREFILL);
      EXPECT_NE(id_of(again), id_of(first));
      const auto last = only(exchange->deliver(leg_failed(again.id, HANDOFF_CAUSE_RESET, flags)));
      EXPECT_EQ(last.kind, Action::Kind::fail_with_leg);
    }
  }
  EXPECT_EQ(host_.counts["started_over"], 4);
}

// T27
TEST_F(ContextFirst, MissingHandoffRunsDecodeOnly) {
  for (const std::string params : {"null", "{}", "{ }"}) {
    const auto action = after_reply(kChat, kAsk, context_reply(params));
    EXPECT_EQ(action.kind, Action::Kind::decode_only) << params;
    EXPECT_EQ(action.reason, "missing_handoff");
  }
  const Backend strict(plugin_, host_, {{"DYN_SIDECAR_ON_MISSING_HANDOFF", "error"}});
  EXPECT_TRUE(strict.created()) << strict.error();
}

class ContextFirstStrict : public TrtllmCase {
 protected:
  ContextFirstStrict() : TrtllmCase({{"DYN_SIDECAR_ON_MISSING_HANDOFF", "error"}}) {}
};

TEST_F(ContextFirstStrict, MissingHandoffIsAnError) {
  const auto action = after_reply(kChat, kAsk, context_reply("null"));
  EXPECT_EQ(action.kind, Action::Kind::fail);
  EXPECT_EQ(action.status, 502U);
  EXPECT_EQ(action.code, "missing_prefill_handoff");
}

// T28
TEST_F(ContextFirst, BodyThatIsNoObjectIsRefused) {
  for (const std::string body : {"", "null", "[]", "{\"a\":"}) {
    const auto action = only(begin(kChat, body)->begin_actions());
    EXPECT_EQ(action.kind, Action::Kind::fail);
    EXPECT_EQ(action.status, 400U);
    EXPECT_EQ(action.code, "invalid_pd_request");
  }
}

// T29
TEST_F(ContextFirst, RequestsThatAHandoffCantCarryRunDecodeOnly) {
  EXPECT_EQ(decode_only_reason(kChat, R"({"n":2})"), "n");
  EXPECT_EQ(decode_only_reason(kChat, R"({"n":1,"n":2,"n":1})"), "n");
  EXPECT_EQ(decode_only_reason(kChat, R"({"best_of":4})"), "best_of");
  EXPECT_EQ(decode_only_reason(kChat, R"({"use_beam_search":true})"), "use_beam_search");
  EXPECT_EQ(decode_only_reason(kCompletions, R"({"echo":true})"), "echo");
  EXPECT_EQ(decode_only_reason(kCompletions, R"({"prompt":["a","b"]})"), "several_prompts");
  EXPECT_EQ(decode_only_reason(kCompletions, R"({"prompt":[[1],[2]]})"), "several_prompts");
  // Context's reply repeats them, and would be refused for them.
  for (const std::string odd : {"[-1]", "[1, -2]", "[[-1]]", "[1.0]", "[true]", "[1,\"a\"]", "[01]"}) {
    EXPECT_EQ(decode_only_reason(kCompletions, R"({"prompt":)" + odd + "}"), "prompt_ids") << odd;
  }
  for (const std::string even : {"[1]", "[ 1 , 2 ]", "[[1,2]]", "[\"a\"]", "\"-1\"", "[]"}) {
    EXPECT_EQ(context(kCompletions, R"({"prompt":)" + even + "}").role, HANDOFF_ROLE_PREFILL) << even;
  }
  EXPECT_EQ(decode_only_reason(kCompletions, R"({"return_context_logits":true})"), "context_logits");
  EXPECT_EQ(decode_only_reason(kChat, R"({"prompt_logprobs":1})"), "prompt_logprobs");
  EXPECT_EQ(decode_only_reason(kChat, R"({"disaggregated_params":{"request_type":"context_only"}})"),
            "client_handoff");
  // Context gets neither member, so it would accept what generation refuses.
  for (const std::string bad : {R"("xyz")", "7", "{}", "\"false\"", "0"}) {
    EXPECT_EQ(decode_only_reason(kChat, R"({"stream":)" + bad + "}"), "stream") << bad;
  }
  for (const std::string bad :
       {R"({"stream_options":{}})", R"({"stream":false,"stream_options":{"include_usage":true}})",
        R"({"stream":true,"stream_options":7})", R"({"stream":true,"stream_options":{"include_usage":"x"}})",
        R"({"stream":true,"stream_options":{"unheard_of":true}})",
        R"({"stream":true,"stream_options":{},"stream_options":7,"stream_options":{}})"}) {
    EXPECT_EQ(decode_only_reason(kChat, bad), "stream_options") << bad;
  }
  for (const std::string good :
       {R"({"stream":null,"stream_options":null})", R"({"stream":"on","stream_options":{}})",
        R"({"stream_options":{"include_usage":true,"continuous_usage_stats":null},"stream":true})"}) {
    EXPECT_EQ(decode_only_reason(kChat, good), "") << good;
  }
  for (const std::string body : {R"({"n":1,"best_of":1.0,"use_beam_search":false,"echo":null})",
                                 R"({"prompt":"a"})", R"({"prompt":["a"]})", R"({"prompt":[1,2]})",
                                 R"({"disaggregated_params":null})", R"({"disaggregated_params":{ }})"}) {
    EXPECT_EQ(decode_only_reason(kCompletions, body), "") << body;
  }
}

// T30
TEST_F(ContextFirst, HeadersThatChangeWhatTheEngineReadsAreRemoved) {
  const std::vector<Header> forged{{"X-TRTLLM-Disagg-Auth", "sha256=00"}, {"x-trtllm-msgpack", "1"}};
  const auto exchange = begin(kChat, kAsk, forged);
  const auto context = only(exchange->begin_actions()).leg;
  const auto generation = only(exchange->deliver(leg_done(1, 200, context_reply()))).leg;
  for (const auto& leg : {context, generation}) {
    EXPECT_EQ(leg.header("x-trtllm-disagg-auth"), "");
    EXPECT_EQ(leg.header("x-trtllm-msgpack"), "");
  }
  const auto plain = only(begin(kChat, R"({"n":2})", forged)->begin_actions());
  EXPECT_EQ(plain.headers.size(), 2U);
}

// T31: range and uniqueness, in a burst and beside another sidecar
TEST_F(ContextFirst, IdsAreUniqueIntegersOfTheGlobalRange) {
  Host other(2);
  Backend beside(plugin_, other);
  std::set<std::string> seen;
  for (int i = 0; i < 20'000; ++i) {
    const Exchange exchange(i % 2 == 0 ? backend_ : beside, {.path = std::string(kChat), .body = kAsk});
    const auto body = Json::parse(exchange.begin_actions().at(0).leg.body);
    const auto& id = body["disaggregated_params"]["disagg_request_id"];
    ASSERT_TRUE(id.is_number_unsigned());
    ASSERT_GE(id.get<std::uint64_t>(), std::uint64_t{1} << 42);
    ASSERT_LT(id.get<std::uint64_t>(), std::uint64_t{1} << 63);
    ASSERT_TRUE(seen.insert(id.dump()).second);
  }
}

// T32
TEST_F(ContextFirst, EqualRequestIdsDoNotCross) {
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (int i = 0; i < 8; ++i)
    exchanges.push_back(begin(kChat, R"({"user":)" + std::to_string(i) + "}", {{"x-request-id", "same"}}));
  for (int i = 7; i >= 0; --i) {
    std::string mine = kContextParams;
    mine.replace(mine.find("QUJD"), 4, "AAA" + std::to_string(i));
    const auto leg =
        only(exchanges[static_cast<std::size_t>(i)]->deliver(leg_done(1, 200, context_reply(mine)))).leg;
    EXPECT_EQ(Json::parse(leg.body)["user"], i);
    EXPECT_NE(leg.body.find("AAA" + std::to_string(i)), std::string::npos);
  }
}

// T33
TEST_F(ContextFirst, StartIsRefusedForSettingsThatItDoesNotKnow) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"DYN_SIDECAR_TRTLLM_SCHEDULE", "both"},
                                                        {"DYN_SIDECAR_TRTLLM_SCHEDULE", ""},
                                                        {"DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE", "\n\r\n"},
                                                        {"DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE", " \t \n"},
                                                        {"DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE", "key\nother\n"},
                                                        {"DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE", "\nkey\n"},
                                                        {"DYN_SIDECAR_ON_MISSING_HANDOFF", "ignore"}}) {
    const Backend refused(plugin_, host_, {{key, value}});
    EXPECT_FALSE(refused.created()) << key << "=" << value;
    EXPECT_NE(refused.error().find(key), std::string::npos) << refused.error();
  }
}

// T34
TEST_F(ContextFirst, DeclaresItsRoutesAndReservedFields) {
  const auto text = [](handoff_bytes bytes) { return std::string(bytes.data, bytes.size); };
  const auto& api = plugin_.api();
  std::set<std::string> routes;
  for (std::size_t i = 0; i < api.route_count; ++i) routes.insert(text(api.routes[i].path));
  EXPECT_EQ(routes, (std::set<std::string>{std::string(kChat), std::string(kCompletions)}));
  std::set<std::string> reserved;
  for (std::size_t i = 0; i < api.reserved_field_count; ++i)
    reserved.insert(text(api.reserved_fields[i].path));
  EXPECT_EQ(reserved, (std::set<std::string>{"disaggregated_params", "prompt_token_ids_b64",
                                             "ctx_info_endpoint", "encoded_opaque_state"}));
  EXPECT_LT(api.engine_idle_ms, 1000U);
}

}  // namespace
}  // namespace handoff::plugin_test
