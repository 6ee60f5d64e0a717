// The course of a request. Case numbers as in backends/vllm/PROTOCOL.md.
#include <nlohmann/json.hpp>

#include <set>

#include "tests/unit/backends/vllm/vllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint32_t kLost = HANDOFF_REUSED;
constexpr std::uint32_t kLostSent = HANDOFF_REUSED | HANDOFF_REQUEST_SENT;

class VllmExchangeTest : public VllmCase {
 protected:
  /// A chat request whose prefill is done and whose decode leg (id 2) runs.
  std::unique_ptr<Exchange> decoding(std::string_view path = kChat, std::string body = R"({"messages":[]})",
                                     std::vector<Header> headers = {}) {
    auto exchange = begin(path, std::move(body), std::move(headers));
    const auto action = only(exchange->deliver(leg_done(1, 200, reply_with(kHandoff))));
    EXPECT_EQ(action.leg.id, 2U);
    return exchange;
  }
  static void expect_release(const std::vector<Action>& actions) {
    ASSERT_EQ(actions.size(), 1U);
    EXPECT_EQ(actions[0].kind, Action::Kind::background);
    EXPECT_EQ(actions[0].leg.name, "release");
  }
};

// C01
TEST_F(VllmExchangeTest, WithoutPrefillEndpointRunsDecodeOnly) {
  for (const std::string body : {R"({"n":3})", "not json", ""}) {
    const Exchange exchange(backend_,
                            {.path = std::string(kChat),
                             .body = body,
                             .prefill = std::nullopt,
                             .headers = {{"X-Dynamo-DP-Rank", "3"}, {"x-dynamo-prefill-dp-rank", "5"}}});
    const auto action = only(exchange.begin_actions());
    EXPECT_EQ(action.kind, Action::Kind::decode_only);
    EXPECT_EQ(action.reason, "no_prefill_endpoint");
    EXPECT_EQ(action.headers, (std::vector<Header>{{"x-data-parallel-rank", "3"}}));
  }
}

// C02, C21, C26, C28, C29: the sidecar carries the bytes; the plugin asks it to relay, with the client's
// target, method and headers.
TEST_F(VllmExchangeTest, PrefillsThenRelaysDecode) {
  const auto exchange = begin(kChat, R"({"messages":[]})");
  const auto prefill = only(exchange->begin_actions()).leg;
  EXPECT_EQ(prefill.id, 1U);
  EXPECT_EQ(prefill.target, HANDOFF_TARGET_PREFILL);
  EXPECT_EQ(prefill.reply, HANDOFF_REPLY_COLLECT);
  EXPECT_EQ(prefill.flags, HANDOFF_LEG_MAY_RESEND);
  EXPECT_EQ(prefill.path + prefill.method, "");

  const auto decode = only(exchange->deliver(leg_done(1, 200, reply_with(kHandoff)))).leg;
  EXPECT_EQ(decode.target, HANDOFF_TARGET_LOCAL);
  EXPECT_EQ(decode.reply, HANDOFF_REPLY_RELAY);
  EXPECT_EQ(decode.flags, 0U) << "a handoff must not be sent twice";
  EXPECT_EQ(decode.path + decode.method, "");
  EXPECT_TRUE(decode.headers.empty());

  EXPECT_TRUE(exchange->deliver(leg_done(2, 200, "")).empty());
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED, HANDOFF_REQUEST_SENT)).empty());
}

// C16, C19
TEST_F(VllmExchangeTest, PrefillFailuresAreTheSidecarsToTell) {
  for (const std::uint32_t status : {301U, 400U, 401U, 404U, 429U, 500U, 503U}) {
    const auto exchange = begin(kChat, R"({"messages":[]})");
    const auto action = only(exchange->deliver(leg_done(1, status, reply_with(kHandoff))));
    EXPECT_EQ(action.kind, Action::Kind::fail_with_leg) << status;
    EXPECT_EQ(action.leg_id, 1U);
    EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED)).empty());
  }
  for (std::uint32_t cause = HANDOFF_CAUSE_CONNECT; cause <= HANDOFF_CAUSE_OVERLOADED; ++cause) {
    const auto exchange = begin(kChat, R"({"messages":[]})");
    const auto action = only(exchange->deliver(leg_failed(1, cause, kLostSent)));
    EXPECT_EQ(action.kind, Action::Kind::fail_with_leg) << cause;
    EXPECT_EQ(action.leg_id, 1U);
  }
}

// C22, C23
TEST_F(VllmExchangeTest, ClientThatLeavesDuringPrefillStartsNoDecode) {
  const auto exchange = begin(kChat, R"({"messages":[]})");
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)).empty());
}

// C20, C41
TEST_F(VllmExchangeTest, DecodeThatCantBeReachedIsAnErrorAndReleasesTheHandoff) {
  for (const auto cause : {HANDOFF_CAUSE_CONNECT, HANDOFF_CAUSE_CONNECT_TIMEOUT}) {
    const auto exchange = decoding();
    const auto action = only(exchange->deliver(leg_failed(2, cause)));
    EXPECT_EQ(action.kind, Action::Kind::fail_with_leg);
    EXPECT_EQ(action.leg_id, 2U);
    expect_release(exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED)));
  }
}

// C42: the engine that has the request frees the handoff by itself.
TEST_F(VllmExchangeTest, DecodeThatFailsAfterTheRequestWasSentReleasesNothing) {
  for (const auto cause : {HANDOFF_CAUSE_RESET, HANDOFF_CAUSE_READ_TIMEOUT, HANDOFF_CAUSE_MALFORMED}) {
    const auto exchange = decoding();
    const auto action = only(exchange->deliver(leg_failed(2, cause, HANDOFF_REQUEST_SENT)));
    EXPECT_EQ(action.kind, Action::Kind::fail_with_leg);
    EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED, HANDOFF_REQUEST_SENT)).empty());
  }
}

// C24, C25, C41, C42: the client leaves while the decode leg is on its way.
TEST_F(VllmExchangeTest, ClientThatLeavesBeforeDecodeIsSentReleasesTheHandoff) {
  for (const auto outcome : {HANDOFF_OUTCOME_CLIENT_GONE, HANDOFF_OUTCOME_SHUTDOWN}) {
    expect_release(decoding()->deliver(ended(outcome)));
    EXPECT_TRUE(decoding()->deliver(ended(outcome, HANDOFF_REQUEST_SENT)).empty());
  }
}

TEST_F(VllmExchangeTest, BreakInMidAnswerIsLeftAlone) {
  const auto exchange = decoding();
  const auto flags = HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED | HANDOFF_CLIENT_STARTED | HANDOFF_REUSED;
  EXPECT_TRUE(exchange->deliver(leg_failed(2, HANDOFF_CAUSE_RESET, flags)).empty());
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_BROKEN, flags)).empty());
}

// C41: what the release is made of.
TEST_F(VllmExchangeTest, ReleaseIsTheRequestCutToOneTokenWithAFreshSalt) {
  const std::string salt = R"("[0-9a-f]{32}")";
  const auto release_of = [&](std::string_view path, std::string body) {
    const auto actions = decoding(path, std::move(body), {{"x-dynamo-dp-rank", "2"}})
                             ->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE));
    expect_release(actions);
    return actions.empty() ? Leg{} : actions[0].leg;
  };
  const auto chat = release_of(
      kChat,
      R"({"messages":[],"stream":true,"stream_options":{},"min_tokens":2,"cache_salt":"c","max_tokens":9})");
  EXPECT_EQ(chat.target, HANDOFF_TARGET_LOCAL);
  EXPECT_EQ(chat.role, HANDOFF_ROLE_AUXILIARY);
  EXPECT_EQ(chat.deadline_ms, 5000U);
  EXPECT_EQ(chat.header("x-data-parallel-rank"), "2");
  auto body = Json::parse(chat.body);
  const auto first_salt = body["cache_salt"].get<std::string>();
  EXPECT_EQ(first_salt.size(), 32U);
  EXPECT_EQ(chat.body, R"({"messages":[],"stream":false,"cache_salt":")" + first_salt +
                           R"(","max_tokens":1,"kv_transfer_params":)" + kHandoff + "}");

  const auto completions = Json::parse(release_of(kCompletions, R"({"prompt":"p"})").body);
  EXPECT_NE(completions["cache_salt"], first_salt);
  EXPECT_EQ(completions["max_tokens"], 1);
  const auto responses = Json::parse(release_of(kResponses, R"({"input":"i"})").body);
  EXPECT_EQ(responses["max_output_tokens"], 1);
  EXPECT_EQ(responses["store"], false);
  EXPECT_EQ(responses.count("cache_salt"), 1U);
  const auto messages = Json::parse(release_of(kMessages, R"({"max_tokens":8})").body);
  EXPECT_EQ(messages["max_tokens"], 1);
  EXPECT_EQ(messages.count("cache_salt"), 0U) << "not in that schema";
  const auto generate = Json::parse(release_of(kGenerate, R"({"sampling_params":{"max_tokens":8}})").body);
  EXPECT_EQ(generate["sampling_params"]["max_tokens"], 1);
  EXPECT_EQ(generate["sampling_params"]["extra_args"]["kv_transfer_params"], Json::parse(kHandoff));
  EXPECT_EQ(generate.count("cache_salt"), 1U);
}

// C43: the first handoff may have been taken, so a fresh one is made, once.
TEST_F(VllmExchangeTest, DecodeLostOnAReusedConnectionStartsOverOnce) {
  const auto exchange = decoding();
  const auto again = only(exchange->deliver(leg_failed(2, HANDOFF_CAUSE_RESET, kLostSent))).leg;
  EXPECT_EQ(again.id, 3U);
  EXPECT_EQ(again.role, HANDOFF_ROLE_PREFILL);
  EXPECT_EQ(host_.counts["started_over"], 1);

  std::string second = kHandoff;
  second.replace(second.find("1a2b3c4d"), 8, "55555555");
  const auto decode = only(exchange->deliver(leg_done(3, 200, reply_with(second)))).leg;
  EXPECT_EQ(decode.id, 4U);
  EXPECT_EQ(decode.body, R"({"messages":[],"kv_transfer_params":)" + second + "}");

  const auto action = only(exchange->deliver(leg_failed(4, HANDOFF_CAUSE_RESET, kLostSent)));
  EXPECT_EQ(action.kind, Action::Kind::fail_with_leg);
  EXPECT_EQ(action.leg_id, 4U);
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED, HANDOFF_REQUEST_SENT)).empty());
}

TEST_F(VllmExchangeTest, ClientThatLeavesDuringTheSecondPrefillReleasesNothing) {
  const auto exchange = decoding();
  exchange->deliver(leg_failed(2, HANDOFF_CAUSE_RESET, kLostSent));
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE, HANDOFF_REQUEST_SENT)).empty());
}

TEST_F(VllmExchangeTest, SecondHandoffIsReleasedWhenItsLegTellsThatItWasNotSent) {
  const auto exchange = decoding();
  exchange->deliver(leg_failed(2, HANDOFF_CAUSE_RESET, kLostSent));
  std::string second = kHandoff;
  second.replace(second.find("1a2b3c4d"), 8, "55555555");
  exchange->deliver(leg_done(3, 200, reply_with(second)));
  exchange->deliver(leg_failed(4, HANDOFF_CAUSE_CONNECT));
  const auto actions = exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED, HANDOFF_REQUEST_SENT));
  expect_release(actions);
  EXPECT_NE(actions.at(0).leg.body.find("55555555"), std::string::npos);
  EXPECT_EQ(actions.at(0).leg.body.find("1a2b3c4d"), std::string::npos);
}

TEST_F(VllmExchangeTest, LossThatIsNoLossInTransitDoesNotStartOver) {
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> failures{
      {HANDOFF_CAUSE_RESET, HANDOFF_REQUEST_SENT}, {HANDOFF_CAUSE_RESET, kLostSent | HANDOFF_REPLY_STARTED},
      {HANDOFF_CAUSE_READ_TIMEOUT, kLostSent},     {HANDOFF_CAUSE_DEADLINE, kLostSent},
      {HANDOFF_CAUSE_MALFORMED, kLostSent},        {HANDOFF_CAUSE_OVERLOADED, kLost},
  };
  for (const auto& [cause, flags] : failures) {
    const auto exchange = decoding();
    EXPECT_EQ(only(exchange->deliver(leg_failed(2, cause, flags))).kind, Action::Kind::fail_with_leg)
        << cause;
  }
}

// C44: no byte of the request left us, so the handoff is still fresh.
TEST_F(VllmExchangeTest, UnsentHandoffGoesOutOnANewLegOnce) {
  const auto exchange = decoding();
  const auto again = only(exchange->deliver(leg_failed(2, HANDOFF_CAUSE_RESET, kLost))).leg;
  EXPECT_EQ(again.id, 3U);
  EXPECT_EQ(again.role, HANDOFF_ROLE_DECODE);
  EXPECT_EQ(again.body, R"({"messages":[],"kv_transfer_params":)" + kHandoff + "}");
  EXPECT_EQ(only(exchange->deliver(leg_failed(3, HANDOFF_CAUSE_RESET, kLost))).kind,
            Action::Kind::fail_with_leg);
  expect_release(exchange->deliver(ended(HANDOFF_OUTCOME_ANSWERED)));
}

// C45
TEST_F(VllmExchangeTest, RanksGoToTheLegTheyAreFor) {
  const std::vector<Header> both{{"X-Dynamo-Prefill-DP-Rank", "5"}, {"x-dynamo-dp-rank", "3"}};
  EXPECT_EQ(prefill(kChat, "{}", both).header("x-data-parallel-rank"), "5");
  EXPECT_EQ(decode(kChat, "{}", reply_with(kHandoff), both).header("x-data-parallel-rank"), "3");

  // The client's own rank is meant for the engine that answers it.
  const std::vector<Header> own{{"X-data-parallel-rank", "7"}};
  EXPECT_EQ(prefill(kChat, "{}", own).header("x-data-parallel-rank"), "") << "removed";
  EXPECT_EQ(decode(kChat, "{}", reply_with(kHandoff), own).header("x-data-parallel-rank"), std::nullopt);

  for (const std::string bad : {"", "-1", "1.5", "a", "1 2", "123456789"}) {
    const std::vector<Header> odd{{"x-dynamo-prefill-dp-rank", bad}, {"x-dynamo-dp-rank", bad}};
    EXPECT_EQ(prefill(kChat, "{}", odd).header("x-data-parallel-rank"), "") << bad;
    EXPECT_TRUE(decode(kChat, "{}", reply_with(kHandoff), odd).headers.empty()) << bad;
  }
  const auto exchange = begin(kChat, "{}", both);
  EXPECT_EQ(only(exchange->deliver(leg_done(1, 200, "{}"))).headers,
            (std::vector<Header>{{"x-data-parallel-rank", "3"}}));
}

// C27: handoffs follow their exchange, not the request id.
TEST_F(VllmExchangeTest, EqualRequestIdsDoNotCross) {
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (int i = 0; i < 8; ++i) {
    exchanges.push_back(begin(kChat, R"({"user":)" + std::to_string(i) + "}", {{"x-request-id", "same"}}));
  }
  for (int i = 7; i >= 0; --i) {
    std::string mine = kHandoff;
    mine.replace(mine.find("1a2b3c4d"), 8, "handoff" + std::to_string(i));
    const auto leg =
        only(exchanges[static_cast<std::size_t>(i)]->deliver(leg_done(1, 200, reply_with(mine)))).leg;
    EXPECT_EQ(leg.body, R"({"user":)" + std::to_string(i) + R"(,"kv_transfer_params":)" + mine + "}");
  }
}

// C30, C50
TEST_F(VllmExchangeTest, StartIsRefusedForSettingsThatItDoesNotKnow) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"DYN_VLLM_NIXL_PROTOCOL_VERSION", "vllm-v0.30.0-nixl-pull"},
           {"DYN_VLLM_NIXL_PROTOCOL_VERSION", ""},
           {"DYN_SIDECAR_VLLM_CONNECTOR", "lmcache"},
           {"DYN_SIDECAR_VLLM_P2P_PORT", "0"},
           {"DYN_SIDECAR_VLLM_MOONCAKE_BOOTSTRAP_PORT", "x"},
           {"DYN_SIDECAR_ON_MISSING_HANDOFF", "ignore"}}) {
    const Backend refused(plugin_, host_, {{key, value}});
    EXPECT_FALSE(refused.created()) << key << "=" << value;
    EXPECT_NE(refused.error().find(key), std::string::npos) << refused.error();
  }
}

// C49
TEST_F(VllmExchangeTest, DeclaresItsRoutesAndReservedFields) {
  const auto text = [](handoff_bytes bytes) { return std::string(bytes.data, bytes.size); };
  std::set<std::string> routes;
  for (std::size_t i = 0; i < plugin_.api().route_count; ++i)
    routes.insert(text(plugin_.api().routes[i].path));
  EXPECT_EQ(routes,
            (std::set<std::string>{std::string(kChat), std::string(kCompletions), std::string(kResponses),
                                   std::string(kMessages), std::string(kGenerate)}));
  std::set<std::string> reserved;
  for (std::size_t i = 0; i < plugin_.api().reserved_field_count; ++i) {
    reserved.insert(text(plugin_.api().reserved_fields[i].path));
  }
  EXPECT_EQ(reserved, (std::set<std::string>{"kv_transfer_params", "vllm_xargs.kv_transfer_params",
                                             "sampling_params.extra_args.kv_transfer_params"}));
  EXPECT_EQ(text(plugin_.api().protocol), "vllm-v0.29.0-nixl-pull");
  EXPECT_EQ(plugin_.api().engine_idle_ms, 4000U);
}

}  // namespace
}  // namespace handoff::plugin_test
