// NIXL push, one leg after the other and both at once (C60, C61, C76 to C79 of backends/vllm/PROTOCOL.md).
#include <nlohmann/json.hpp>
#include <set>

#include "tests/unit/backends/vllm/connector_case.hpp"

namespace handoff::plugin_test {
namespace {

class NixlPush : public VllmCase {
 protected:
  NixlPush() : VllmCase(connector("nixl-push")) {}
};

// C60: decode registers its own blocks, so that prefill's are not needed; otherwise as with pull.
TEST_F(NixlPush, HandoffNeedsNoBlockIds) {
  const auto leg = decode(kChat, kShortAsk, reply_with(kPushed));
  EXPECT_EQ(Json::parse(leg.body)["kv_transfer_params"], Json::parse(kPushed));
  auto listed = Json::parse(kPushed);
  listed["remote_block_ids"] = Json::array();
  EXPECT_EQ(after_reply(reply_with(listed.dump())).kind, Kind::start);
  for (const std::string name : {"remote_engine_id", "remote_request_id", "remote_host", "remote_port"}) {
    auto lacking = Json::parse(kPushed);
    lacking.erase(name);
    EXPECT_EQ(after_reply(reply_with(lacking.dump())).code, "invalid_prefill_handoff") << name;
  }
}

// C61: engines of the two modes never shake hands.
TEST_F(NixlPush, HandoffOfTheOtherModeIsRefused) {
  EXPECT_EQ(after_reply(reply_with(kHandoff)).code, "invalid_prefill_handoff");
}

// C76: engines that push pair the legs by the request id, so that each attempt has its own.
TEST_F(NixlPush, LegsShareARequestIdOfTheirOwn) {
  const std::vector<Header> client{{"x-request-id", "mine"}};
  std::vector<std::string> seen;
  for (int i = 0; i < 2; ++i) {
    const auto exchange = begin(kChat, kShortAsk, client);
    const auto prefill = only(exchange->begin_actions()).leg;
    const auto decode = only(exchange->deliver(leg_done(prefill.id, 200, reply_with(kPushed)))).leg;
    EXPECT_EQ(prefill.header("x-request-id"), decode.header("x-request-id"));
    seen.push_back(prefill.header("x-request-id").value_or(""));
    // Lost on a kept connection: what was registered under the old name may still come.
    const auto again = only(exchange->deliver(lost(decode.id))).leg;
    seen.push_back(again.header("x-request-id").value_or(""));
  }
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 4U);
  for (const auto& id : seen) EXPECT_NE(id, "mine");
}

class ConcurrentPush : public VllmCase {
 protected:
  ConcurrentPush()
      : VllmCase(
            {{"DYN_SIDECAR_VLLM_CONNECTOR", "nixl-push"}, {"DYN_SIDECAR_VLLM_PUSH_ORDER", "concurrent"}}) {}

  /// A request whose prefill engine is known, or becomes known by the request before it.
  Pair pair() {
    Pair out{begin(kChat, kShortAsk), {}, {}};
    auto actions = out.exchange->begin_actions();
    if (actions.size() == 1) {
      EXPECT_EQ(only(out.exchange->deliver(leg_done(actions[0].leg.id, 200, reply_with(kPushed)))).kind,
                Kind::start);
      out.exchange = begin(kChat, kShortAsk);
      actions = out.exchange->begin_actions();
    }
    EXPECT_EQ(actions.size(), 2U);
    if (actions.size() == 2) {
      out.prefill = actions[0].leg;
      out.decode = actions[1].leg;
    }
    return out;
  }
};

// C77
TEST_F(ConcurrentPush, DecodeRegistersWhereAnEarlierReplySaidPrefillIs) {
  auto known = pair();
  const auto told = Json::parse(known.decode.body)["kv_transfer_params"];
  auto expected = Json::parse(kPushed);
  expected["remote_request_id"] = known.decode.header("x-request-id").value_or("");
  EXPECT_EQ(nlohmann::json(told), nlohmann::json(expected));
  EXPECT_EQ(known.prefill.header("x-request-id"), known.decode.header("x-request-id"));
  EXPECT_EQ(known.decode.reply, HANDOFF_REPLY_HOLD);
  EXPECT_EQ(Json::parse(known.prefill.body)["min_tokens"], 1) << "decode waits for what is handed over";
  EXPECT_EQ(Json::parse(known.decode.body).count("min_tokens"), 0U);
  EXPECT_TRUE(known.exchange->deliver(leg_done(known.prefill.id, 200, reply_with(kPushed))).empty())
      << "what decode was told came from memory: it speaks first";
  EXPECT_TRUE(known.exchange->deliver(head(known.decode.id, 200)).empty());
  const auto action = only(known.exchange->deliver(piece(known.decode.id, "data: {}\n\n")));
  EXPECT_EQ(action.kind, Kind::relay);
  EXPECT_EQ(action.leg_id, known.decode.id);
}

// C78: the engine was restarted. Its blocks wait for a registration that goes to where it is now.
TEST_F(ConcurrentPush, AnotherAddressMovesDecode) {
  auto moved = pair();
  auto handoff = Json::parse(kPushed);
  handoff["remote_engine_id"] = "another";
  const auto actions = moved.exchange->deliver(leg_done(moved.prefill.id, 200, reply_with(handoff.dump())));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::cancel);
  EXPECT_EQ(actions[0].leg_id, moved.decode.id);
  EXPECT_EQ(Json::parse(actions[1].leg.body)["kv_transfer_params"], handoff);
  EXPECT_EQ(actions[1].leg.header("x-request-id"), moved.prefill.header("x-request-id"));
  EXPECT_EQ(actions[1].leg.reply, HANDOFF_REPLY_RELAY);
  const auto next = begin(kChat, kShortAsk)->begin_actions();
  ASSERT_EQ(next.size(), 2U) << "remembered anew";
  EXPECT_EQ(Json::parse(next[1].leg.body)["kv_transfer_params"]["remote_engine_id"], "another");
}

TEST_F(ConcurrentPush, ReplyWithoutAHandoffRunsDecodeOnly) {
  auto plain = pair();
  const auto actions = plain.exchange->deliver(leg_done(plain.prefill.id, 200, reply_with("null")));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::cancel);
  EXPECT_EQ(actions[1].kind, Kind::decode_only);
}

TEST_F(ConcurrentPush, RefusalOfARememberedAddressStartsOverOneAfterTheOther) {
  auto stale = pair();
  const auto actions = stale.exchange->deliver(head(stale.decode.id, 500));
  ASSERT_EQ(actions.size(), 3U);
  EXPECT_EQ(actions[2].leg.role, HANDOFF_ROLE_PREFILL);
  EXPECT_NE(actions[2].leg.header("x-request-id"), stale.prefill.header("x-request-id"));
  const auto decode =
      only(stale.exchange->deliver(leg_done(actions[2].leg.id, 200, reply_with(kPushed)))).leg;
  EXPECT_EQ(decode.reply, HANDOFF_REPLY_RELAY);
}

// C79: the next request may go to another rank, which registers elsewhere.
TEST_F(ConcurrentPush, RankThatNobodyChoseIsNotRemembered) {
  auto handoff = Json::parse(kPushed);
  handoff["remote_engine_id"] = "e_dp1";
  for (const bool chosen : {false, true}) {
    std::vector<Header> headers;
    if (chosen) headers.push_back({"x-dynamo-prefill-dp-rank", "1"});
    const auto exchange = begin(kChat, kShortAsk, headers);
    const auto prefill = only(exchange->begin_actions()).leg;
    only(exchange->deliver(leg_done(prefill.id, 200, reply_with(handoff.dump()))));
    EXPECT_EQ(begin(kChat, kShortAsk, headers)->begin_actions().size(), chosen ? 2U : 1U);
  }
}

}  // namespace
}  // namespace handoff::plugin_test
