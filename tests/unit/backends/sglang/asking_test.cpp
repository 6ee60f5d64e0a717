// What engines are asked before the first pair: S50 to S57.
#include <functional>

#include "tests/unit/backends/sglang/sglang_case.hpp"

namespace handoff::plugin_test {
namespace {

class SglangAsking : public SglangCase {
 protected:
  SglangAsking() : SglangCase(std::map<std::string, std::string>{}) {}

  static std::map<std::uint32_t, std::uint32_t> questions(const std::vector<Action>& actions) {
    std::map<std::uint32_t, std::uint32_t> ids;  // by target
    for (const auto& action : of_kind(actions, Action::Kind::start)) {
      if (action.leg.role != HANDOFF_ROLE_AUXILIARY) continue;
      EXPECT_EQ(action.leg.method, "GET");
      EXPECT_EQ(action.leg.path, "/server_info");
      ids[action.leg.target] = action.leg.id;
    }
    return ids;
  }
  /// Begins a request and lets both engines answer.
  std::vector<Action> answered(std::string prefill, std::string decode, std::vector<Header> headers = {},
                               std::string body = kChatBody) {
    exchange_ = begin(kChat, std::move(body), std::move(headers));
    const auto ids = questions(exchange_->begin_actions());
    EXPECT_EQ(ids.size(), 2U);
    auto actions = exchange_->deliver(leg_done(ids.at(HANDOFF_TARGET_PREFILL), 200, std::move(prefill)));
    if (!exchange_->answered())
      actions = exchange_->deliver(leg_done(ids.at(HANDOFF_TARGET_LOCAL), 200, std::move(decode)));
    return actions;
  }
  std::unique_ptr<Exchange> exchange_;
};

TEST_F(SglangAsking, BothEnginesAreAskedAtOnceAndThenRemembered) {
  const auto actions = answered(kPrefillInfo, kDecodeInfo);
  EXPECT_EQ(member(leg(actions, HANDOFF_ROLE_DECODE), "bootstrap_port"), 8998);
  const auto next = begin(kChat, kChatBody);
  EXPECT_TRUE(questions(next->begin_actions()).empty());
  EXPECT_EQ(member(leg(next->begin_actions(), HANDOFF_ROLE_PREFILL), "bootstrap_port"), 8998);
}

TEST_F(SglangAsking, EachEndpointIsAskedForItself) {
  answered(kPrefillInfo, kDecodeInfo);
  const auto other = begin(kChat, kChatBody, {}, {.host = "10.0.0.9", .port = 8001});
  const auto ids = questions(other->begin_actions());
  EXPECT_EQ(ids.size(), 1U);
  EXPECT_TRUE(ids.contains(HANDOFF_TARGET_PREFILL));
}

TEST_F(SglangAsking, QuestionsCarryTheClientsKeyOnly) {
  exchange_ = begin(kChat, kChatBody, {{"Authorization", "Bearer k"}, {"x-other", "1"}});
  for (const auto& action : exchange_->begin_actions()) {
    EXPECT_EQ(action.leg.header("authorization"), "Bearer k");
    EXPECT_NE(action.leg.flags & HANDOFF_LEG_NO_CLIENT_HEADERS, 0U);
    EXPECT_NE(action.leg.flags & HANDOFF_LEG_MAY_RESEND, 0U);
  }
}

TEST_F(SglangAsking, AnEngineInAnotherRoleIsAClearError) {
  const std::string unified = R"({"disaggregation_mode":"null","disaggregation_bootstrap_port":8998})";
  for (const auto& [prefill, decode] : std::vector<std::pair<std::string, std::string>>{
           {kDecodeInfo, kDecodeInfo},
           {unified, kDecodeInfo},
           {"{}", kDecodeInfo},
           {"[]", kDecodeInfo},
           {"no JSON", kDecodeInfo},
           {R"({"disaggregation_mode":"prefill"})", kDecodeInfo},
           {R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":0})", kDecodeInfo},
           {R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":65536})", kDecodeInfo},
           {R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":"8998"})", kDecodeInfo},
           {kPrefillInfo, kPrefillInfo},
           {kPrefillInfo, unified}}) {
    Backend fresh(plugin_, host_);
    Exchange exchange(fresh, Request{.path = std::string(kChat), .body = kChatBody});
    const auto ids = questions(exchange.begin_actions());
    auto actions = exchange.deliver(leg_done(ids.at(HANDOFF_TARGET_PREFILL), 200, prefill));
    if (!exchange.answered()) actions = exchange.deliver(leg_done(ids.at(HANDOFF_TARGET_LOCAL), 200, decode));
    const auto failure = only(actions, Action::Kind::fail);
    EXPECT_EQ(failure.status, 502U) << prefill;
    EXPECT_EQ(failure.code, "engine_role_mismatch") << prefill;
  }
}

TEST_F(SglangAsking, QuestionsThatFailAreReported) {
  exchange_ = begin(kChat, kChatBody);
  auto ids = questions(exchange_->begin_actions());
  auto actions = exchange_->deliver(leg_failed(ids.at(HANDOFF_TARGET_PREFILL), HANDOFF_CAUSE_CONNECT));
  EXPECT_EQ(only(actions, Action::Kind::fail_with_leg).leg_id, ids.at(HANDOFF_TARGET_PREFILL));
  EXPECT_TRUE(of_kind(actions, Action::Kind::background).empty()) << "there is nothing to abort";
  exchange_ = begin(kChat, kChatBody);
  ids = questions(exchange_->begin_actions());
  actions = exchange_->deliver(leg_done(ids.at(HANDOFF_TARGET_LOCAL), 404, "{}"));
  EXPECT_EQ(only(actions, Action::Kind::fail).code, "auxiliary_upstream_error");
}

// S59
TEST_F(SglangAsking, AnEngineBehindANewConnectionIsAskedAgain) {
  const auto connected = [](const Leg& leg, std::uint32_t flags) {
    return Event{.kind = HANDOFF_EVENT_LEG_CONNECTED, .leg = leg.id, .flags = flags};
  };
  for (const bool of_prefill : {true, false}) {
    const std::uint32_t target = of_prefill ? HANDOFF_TARGET_PREFILL : HANDOFF_TARGET_LOCAL;
    host_.now_ms += 10000;
    const auto asked = answered(kPrefillInfo, kDecodeInfo);
    EXPECT_EQ(leg(asked, HANDOFF_ROLE_PREFILL).flags, 0U) << "just asked";

    exchange_ = begin(kChat, kChatBody);
    auto prefill = leg(exchange_->begin_actions(), HANDOFF_ROLE_PREFILL);
    auto decode = leg(exchange_->begin_actions(), HANDOFF_ROLE_DECODE);
    EXPECT_TRUE(exchange_->deliver(connected(prefill, HANDOFF_REUSED)).empty());
    EXPECT_TRUE(exchange_->deliver(connected(decode, HANDOFF_REUSED)).empty());
    const auto& side = of_prefill ? prefill : decode;
    auto ids = questions(exchange_->deliver(connected(side, 0)));
    ASSERT_EQ(ids.size(), 1U);
    EXPECT_EQ(questions(begin(kChat, kChatBody)->begin_actions()).count(target), 1U) << "doubtful for others";
    const auto& same = of_prefill ? kPrefillInfo : kDecodeInfo;
    EXPECT_TRUE(exchange_->deliver(leg_done(ids.at(target), 200, same)).empty());
    EXPECT_TRUE(questions(begin(kChat, kChatBody)->begin_actions()).empty()) << "known anew";

    // Another one: what runs is ended, and a second pair begins with what is asked anew.
    exchange_ = begin(kChat, kChatBody);
    prefill = leg(exchange_->begin_actions(), HANDOFF_ROLE_PREFILL);
    decode = leg(exchange_->begin_actions(), HANDOFF_ROLE_DECODE);
    ids = questions(exchange_->deliver(connected(of_prefill ? prefill : decode, 0)));
    auto actions = exchange_->deliver(leg_done(ids.at(target), 200, R"({"disaggregation_mode":"null"})"));
    EXPECT_EQ(of_kind(actions, Action::Kind::cancel).size(), 2U);
    EXPECT_EQ(of_kind(actions, Action::Kind::background).size(), 2U) << "aborts";
    ids = questions(actions);
    ASSERT_EQ(ids.count(target), 1U);
    actions = exchange_->deliver(leg_done(ids.at(target), 200, R"({"disaggregation_mode":"null"})"));
    EXPECT_EQ(only(actions, Action::Kind::fail).code, "engine_role_mismatch");
  }
  EXPECT_EQ(host_.counts["engine_changed"], 2);
}

// Both are asked before the first pair; the answer to one settles the request, and the other's comes after
// that.
TEST_F(SglangAsking, WhatIsAnsweredAfterTheEndIsNotRemembered) {
  for (const std::string& late : {std::string(), std::string("{}"), kDecodeInfo}) {
    exchange_ = begin(kChat, kChatBody);
    auto ids = questions(exchange_->begin_actions());
    ASSERT_EQ(ids.size(), 2U) << late;
    exchange_->deliver(leg_done(ids.at(HANDOFF_TARGET_PREFILL), 401, ""));
    exchange_->deliver(leg_done(ids.at(HANDOFF_TARGET_LOCAL), late.empty() ? 401 : 200, late));
  }
}

TEST_F(SglangAsking, AQuestionBesideThePairThatFailsIsNoFailure) {
  answered(kPrefillInfo, kDecodeInfo);
  exchange_ = begin(kChat, kChatBody);
  const auto prefill = leg(exchange_->begin_actions(), HANDOFF_ROLE_PREFILL);
  const auto ids =
      questions(exchange_->deliver({.kind = HANDOFF_EVENT_LEG_CONNECTED, .leg = prefill.id, .flags = 0}));
  EXPECT_TRUE(exchange_->deliver(leg_failed(ids.at(HANDOFF_TARGET_PREFILL), HANDOFF_CAUSE_RESET)).empty());
  EXPECT_TRUE(exchange_->deliver(leg_done(prefill.id, 200, kGoodPrefill)).empty());
}

TEST_F(SglangAsking, AFailureMakesThePluginAskAgain) {
  auto actions = answered(kPrefillInfo, kDecodeInfo);
  exchange_->deliver(leg_failed(leg(actions, HANDOFF_ROLE_PREFILL).id, HANDOFF_CAUSE_CONNECT));
  EXPECT_EQ(questions(begin(kChat, kChatBody)->begin_actions()).size(), 1U);
}

TEST_F(SglangAsking, WhatFailedIsForgotten) {
  const auto asked_after = [&](const std::function<void(const Leg&, const Leg&)>& fail) {
    host_.now_ms += 10000;  // so that nothing of the case before is remembered
    answered(kPrefillInfo, kDecodeInfo);
    exchange_ = begin(kChat, kChatBody);
    const auto actions = exchange_->begin_actions();
    fail(leg(actions, HANDOFF_ROLE_PREFILL), leg(actions, HANDOFF_ROLE_DECODE));
    return questions(begin(kChat, kChatBody)->begin_actions());
  };
  const auto of_decode = asked_after([&](const Leg&, const Leg& decode) {
    exchange_->deliver(leg_failed(decode.id, HANDOFF_CAUSE_CONNECT));
  });
  EXPECT_EQ(of_decode.size(), 1U);
  EXPECT_TRUE(of_decode.contains(HANDOFF_TARGET_LOCAL));
  // Either may be the cause of what one of them reports, or waits for.
  const auto both = [&](const char* what, const std::function<void(const Leg&, const Leg&)>& fail) {
    EXPECT_EQ(asked_after(fail).size(), 2U) << what;
  };
  both("status",
       [&](const Leg& prefill, const Leg&) { exchange_->deliver(leg_done(prefill.id, 500, "{}")); });
  both("reply", [&](const Leg& prefill, const Leg&) { exchange_->deliver(leg_done(prefill.id, 200, "{}")); });
  both("time", [&](const Leg& prefill, const Leg&) {
    exchange_->deliver(leg_failed(prefill.id, HANDOFF_CAUSE_READ_TIMEOUT, HANDOFF_REQUEST_SENT));
  });
  both("event", [&](const Leg&, const Leg& decode) {
    exchange_->deliver(head(decode.id));
    exchange_->deliver(piece(decode.id, "data: {\"error\":{\"code\":500}}\n\n"));
  });
  EXPECT_TRUE(asked_after([&](const Leg& prefill, const Leg&) {
                exchange_->deliver(leg_done(prefill.id, 400, "{}"));
              }).empty())
      << "the client's own mistake";
  EXPECT_TRUE(asked_after([&](const Leg& prefill, const Leg&) {
                exchange_->deliver(leg_done(prefill.id, 503, "{}"));
              }).empty())
      << "a full queue";
}

// S57: an engine needs longer to start than that.
TEST_F(SglangAsking, AnIdleEndpointIsAskedAgainAfterFiveSeconds) {
  answered(kPrefillInfo, kDecodeInfo);
  host_.now_ms += 5000;
  EXPECT_TRUE(questions(begin(kChat, kChatBody)->begin_actions()).empty());
  host_.now_ms += 1;
  EXPECT_EQ(questions(begin(kChat, kChatBody)->begin_actions()).size(), 2U);
}

TEST_F(SglangAsking, APrefillThatEndsWellShowsThatTheEnginesAreStillTheSame) {
  const auto actions = answered(kPrefillInfo, kDecodeInfo);
  for (int round = 0; round < 3; ++round) {
    host_.now_ms += 4000;
    const auto next = begin(kChat, kChatBody);
    const auto prefill = leg(next->begin_actions(), HANDOFF_ROLE_PREFILL).id;
    ASSERT_TRUE(questions(next->begin_actions()).empty()) << round;
    next->deliver(leg_done(prefill, 200, kGoodPrefill));
  }
}

// S58
TEST_F(SglangAsking, WhatIsTriedOnceMoreIsAskedForFirst) {
  answered(kPrefillInfo, kDecodeInfo);
  exchange_ = begin(kChat, kChatBody);
  const auto first = leg(exchange_->begin_actions(), HANDOFF_ROLE_PREFILL).id;
  auto actions =
      exchange_->deliver(leg_failed(first, HANDOFF_CAUSE_RESET, HANDOFF_REUSED | HANDOFF_REQUEST_SENT));
  const auto ids = questions(actions);
  ASSERT_EQ(ids.size(), 1U) << "another engine may listen there by now";
  EXPECT_EQ(of_kind(actions, Action::Kind::start).size(), 1U);
  const std::string moved =
      R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8111,"version":"0.5.19"})";
  actions = exchange_->deliver(leg_done(ids.at(HANDOFF_TARGET_PREFILL), 200, moved));
  EXPECT_EQ(member(leg(actions, HANDOFF_ROLE_DECODE), "bootstrap_port"), 8111);
}

TEST_F(SglangAsking, VersionsThatDifferAreWarnedOf) {
  answered(R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"version":"0.5.18"})",
           kDecodeInfo);
  ASSERT_EQ(host_.warnings.size(), 1U);
  EXPECT_EQ(host_.warnings.front().first, "version_skew");
}

TEST_F(SglangAsking, AChosenRankDecidesTheRoom) {
  const std::string four =
      R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"dp_size":4})";
  auto actions = answered(four, kDecodeInfo, {{"x-dynamo-prefill-dp-rank", "3"}});
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(member(leg(actions, HANDOFF_ROLE_DECODE), "bootstrap_room").get<std::uint64_t>() % 4, 3U);
    exchange_ = begin(kChat, kChatBody, {{"x-dynamo-prefill-dp-rank", "3"}});
    actions = exchange_->begin_actions();
  }
}

TEST_F(SglangAsking, TheClientsPrefillRankDecidesTheRoomUnlessThePickerDid) {
  const std::string four =
      R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"dp_size":4})";
  const std::string body = R"({"messages":[],"disagg_prefill_dp_rank":3})";
  auto actions = answered(four, kDecodeInfo, {}, body);
  for (int i = 0; i < 20; ++i) {
    const auto decode = leg(actions, HANDOFF_ROLE_DECODE);
    EXPECT_EQ(member(decode, "bootstrap_room").get<std::uint64_t>() % 4, 3U);
    EXPECT_EQ(member(decode, "disagg_prefill_dp_rank"), 3);
    EXPECT_EQ(leg(actions, HANDOFF_ROLE_PREFILL).header("x-data-parallel-rank"), "3");
    exchange_ = begin(kChat, body);
    actions = exchange_->begin_actions();
  }
  const auto chosen = begin(kChat, body, {{"x-dynamo-prefill-dp-rank", "1"}});
  const auto decode = leg(chosen->begin_actions(), HANDOFF_ROLE_DECODE);
  EXPECT_EQ(member(decode, "bootstrap_room").get<std::uint64_t>() % 4, 1U);
  EXPECT_EQ(member(decode, "disagg_prefill_dp_rank"), 1);
}

TEST_F(SglangAsking, APrefillRankThatThereIsNotIsRefused) {
  answered(kPrefillInfo, kDecodeInfo);
  for (const std::string rank : {"1", "-1", "\"0\"", "0.0", "[0]", "99999999999999999999"}) {
    const auto exchange = begin(kChat, R"({"messages":[],"disagg_prefill_dp_rank":)" + rank + "}");
    const auto failure = only(exchange->begin_actions(), Action::Kind::fail);
    EXPECT_EQ(failure.status, 400U) << rank;
    EXPECT_EQ(failure.code, "invalid_pd_request");
    EXPECT_TRUE(of_kind(exchange->begin_actions(), Action::Kind::start).empty());
    EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED)).empty());
  }
  leg(begin(kChat, R"({"messages":[],"disagg_prefill_dp_rank":null})")->begin_actions(), HANDOFF_ROLE_DECODE);
}

TEST_F(SglangAsking, ManyEndpointsDoNotGrowTheMemoryForEver) {
  answered(kPrefillInfo, kDecodeInfo);
  for (std::uint32_t port = 9000; port < 9000 + 1100; ++port) {
    ++host_.now_ms;
    const auto exchange = begin(kChat, kChatBody, {}, {.host = "10.0.0.9", .port = port});
    exchange->deliver(
        leg_done(questions(exchange->begin_actions()).at(HANDOFF_TARGET_PREFILL), 200, kPrefillInfo));
  }
  const auto is_asked = [&](std::uint32_t port) {
    const auto exchange = begin(kChat, kChatBody, {}, {.host = "10.0.0.9", .port = port});
    return questions(exchange->begin_actions()).contains(HANDOFF_TARGET_PREFILL);
  };
  EXPECT_FALSE(is_asked(10099));
  EXPECT_TRUE(is_asked(9000));
}

TEST(SglangSettings, TwoNamesOfOnePortMustAgree) {
  const Plugin plugin(HANDOFF_SGLANG_PLUGIN);
  Host host;
  const Backend both(plugin, host,
                     {{"DYN_SIDECAR_SGLANG_BOOTSTRAP_PORT", "1"}, {"SGLANG_BOOTSTRAP_PORT", "2"}});
  EXPECT_FALSE(both.created());
  EXPECT_NE(both.error().find("SGLANG_BOOTSTRAP_PORT"), std::string::npos);
  const Backend old(plugin, host, {{"SGLANG_BOOTSTRAP_PORT", "9001"}});
  EXPECT_TRUE(old.created());
}

}  // namespace
}  // namespace handoff::plugin_test
