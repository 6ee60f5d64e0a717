// Connectors other than NIXL's pull, and token reuse (C60 to C79 of backends/vllm/PROTOCOL.md).
#include <nlohmann/json.hpp>

#include "tests/unit/backends/vllm/connector_case.hpp"

namespace handoff::plugin_test {
namespace {

const std::string kLength = R"({"choices":[{"finish_reason":"length"}]})";

class NixlPull : public VllmCase {};

TEST_F(NixlPull, HandoffOfTheOtherModeIsRefused) {
  EXPECT_EQ(after_reply(reply_with(kPushed)).code, "invalid_prefill_handoff");
}

// --------------------------------------------------------------------------------------------- token reuse

class TokenReuse : public VllmCase {
 protected:
  TokenReuse() : VllmCase({{"DYN_SIDECAR_VLLM_REUSE_TOKENS", "true"}}) {}
};

// C62
TEST_F(TokenReuse, ChatsAreTokenizedOnce) {
  EXPECT_EQ(Json::parse(prefill(kChat, kShortAsk).body)["return_token_ids"], true);
  const std::string reply = R"({"prompt_token_ids":[1, 2,30],"kv_transfer_params":)" + kHandoff + "}";
  const auto leg = decode(kChat, R"({"messages":[],"return_token_ids":false})", reply);
  const auto params = Json::parse(leg.body)["kv_transfer_params"];
  EXPECT_EQ(params["prompt_token_ids"], Json::array({1, 2, 30}));
  EXPECT_EQ(Json::parse(leg.body)["return_token_ids"], false) << "the client's own";
  auto bare = params;
  bare.erase("prompt_token_ids");
  EXPECT_EQ(bare, Json::parse(kHandoff));
}

// C63: what is no list of tokens is not passed on; decode tokenizes then.
TEST_F(TokenReuse, OtherRepliesAndPathsAreLeftAlone) {
  for (const std::string ids : {"null", "[]", "[1.5]", "[-1]", "\"x\"", "[[1]]"}) {
    const auto leg = decode(kChat, kShortAsk,
                            R"({"prompt_token_ids":)" + ids + R"(,"kv_transfer_params":)" + kHandoff + "}");
    EXPECT_EQ(Json::parse(leg.body)["kv_transfer_params"], Json::parse(kHandoff)) << ids;
  }
  for (const std::string body : {R"({"prompt":[1,2]})", R"({"prompt":["p"]})"})
    EXPECT_EQ(Json::parse(prefill(kCompletions, body).body).count("return_token_ids"), 0U) << body;
  EXPECT_EQ(Json::parse(prefill(kResponses, R"({"input":"p"})").body).count("return_token_ids"), 0U);
}

// C62: a completion's tokens stand in its choice, and are a prompt like any other.
TEST_F(TokenReuse, CompletionsAreTokenizedOnce) {
  for (const std::string stream : {"false", "true"}) {
    const std::string body = R"({"prompt":"p","stream":)" + stream + "}";
    EXPECT_EQ(Json::parse(prefill(kCompletions, body).body)["return_token_ids"], true);
    const std::string handed = R"(,"kv_transfer_params":)" + kHandoff + "}";
    const auto leg = decode(kCompletions, body, R"({"choices":[{"prompt_token_ids":[7, 8]}])" + handed);
    EXPECT_NE(leg.body.find(R"("prompt":[7, 8])"), std::string::npos);
    EXPECT_EQ(Json::parse(leg.body)["kv_transfer_params"], Json::parse(kHandoff));
    EXPECT_EQ(Json::parse(leg.body).count("return_token_ids"), 0U);
    for (const std::string ids : {"null", "[]", "[1.5]", "[[1]]"}) {
      const auto other =
          decode(kCompletions, body, R"({"choices":[{"prompt_token_ids":)" + ids + "}]" + handed);
      EXPECT_EQ(Json::parse(other.body)["prompt"], "p") << ids;
    }
  }
}

// ------------------------------------------------------------------------------------------- shared storage

class SharedStorage : public VllmCase {
 protected:
  SharedStorage() : VllmCase(connector("shared-storage")) {}
};

// C64: prefill fills the store, nothing is handed over.
TEST_F(SharedStorage, PrefillRunsWithOneTokenThenDecodeAsAsked) {
  const auto exchange = begin(kChat, kShortAsk);
  const auto first = only(exchange->begin_actions()).leg;
  EXPECT_EQ(first.body, R"({"messages":[],"max_tokens":1,"stream":false})");
  const auto second = only(exchange->deliver(leg_done(1, 200, R"({"kv_transfer_params":{"a":1}})"))).leg;
  EXPECT_EQ(second.body, kShortAsk);
  EXPECT_EQ(second.reply, HANDOFF_REPLY_RELAY);
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)).empty()) << "nothing to release";
  const auto failed = begin(kChat, kShortAsk);
  EXPECT_EQ(only(failed->deliver(leg_done(1, 503, ""))).kind, Kind::fail_with_leg);
}

// C65: the client lets decode give up when too little is cached.
TEST_F(SharedStorage, DecodeIsAskedFirstWhereTheClientSetAThreshold) {
  const std::string body = R"({"messages":[],"cache_hit_threshold":0.8})";
  const auto exchange = begin(kChat, body);
  const auto first = only(exchange->begin_actions()).leg;
  EXPECT_EQ(first.target, HANDOFF_TARGET_LOCAL);
  EXPECT_EQ(first.reply, HANDOFF_REPLY_COLLECT);
  EXPECT_EQ(first.body, body);
  const auto second =
      only(exchange->deliver(leg_done(1, 200, R"({"choices":[{"finish_reason":"cache_threshold"}]})"))).leg;
  EXPECT_EQ(second.role, HANDOFF_ROLE_PREFILL);
  EXPECT_EQ(Json::parse(second.body)["cache_hit_threshold"], 0);
  EXPECT_EQ(Json::parse(second.body)["max_tokens"], 1);
  const auto third = only(exchange->deliver(leg_done(2, 200, "{}"))).leg;
  EXPECT_EQ(third.id, 3U);
  EXPECT_EQ(third.body, R"({"messages":[],"cache_hit_threshold":0})");

  const auto enough = begin(kChat, body);
  const auto action = only(enough->deliver(leg_done(1, 200, R"({"choices":[{"finish_reason":"stop"}]})")));
  EXPECT_EQ(action.kind, Kind::relay);
  EXPECT_EQ(host_.counts["cached_enough"], 1);
  EXPECT_EQ(host_.counts["cached_too_little"], 1);
  const auto refused = begin(kChat, body);
  EXPECT_EQ(only(refused->deliver(leg_done(1, 400, ""))).kind, Kind::relay);
  const auto gone = begin(kChat, body);
  EXPECT_EQ(only(gone->deliver(leg_failed(1, HANDOFF_CAUSE_CONNECT))).kind, Kind::fail_with_leg);
}

// C66: a stream tells it in its first two events.
TEST_F(SharedStorage, StreamIsHeldUntilItsFirstEventsTell) {
  const std::string body = R"({"prompt":"p","stream":true,"cache_hit_threshold":0.8})";
  const std::string miss = "data: {\"choices\":[{\"finish_reason\":\"cache_threshold\"}]}\n\n";
  const std::string other = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
  const auto exchange = begin(kCompletions, body);
  EXPECT_EQ(only(exchange->begin_actions()).leg.reply, HANDOFF_REPLY_HOLD);
  EXPECT_TRUE(exchange->deliver(head(1, 200)).empty());
  EXPECT_TRUE(exchange->deliver(piece(1, other + miss.substr(0, 20))).empty());
  const auto actions = exchange->deliver(piece(1, miss.substr(20)));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::cancel);
  EXPECT_EQ(actions[1].leg.role, HANDOFF_ROLE_PREFILL);

  const auto enough = begin(kCompletions, body);
  EXPECT_EQ(only(enough->deliver(piece(1, other + other))).kind, Kind::relay);
  const auto refused = begin(kCompletions, body);
  EXPECT_EQ(only(refused->deliver(head(1, 503))).kind, Kind::relay);
  const auto brief = begin(kCompletions, body);
  EXPECT_TRUE(brief->deliver(piece(1, other)).empty());
  EXPECT_EQ(only(brief->deliver(leg_done(1, 200, ""))).kind, Kind::relay);
}

// ------------------------------------------------------------------------------------------------ offloading

class Offloading : public VllmCase {
 protected:
  Offloading() : VllmCase(connector("offloading")) {}
};

// C87
TEST_F(Offloading, PrefillThatReportsAnErrorIsNoPrefill) {
  for (const std::string reply :
       {R"({"error":{"message":"m"}})", R"({"object":"error","message":"m"})",
        R"({"choices":[{"finish_reason":"abort"}]})", R"({"choices":[{"finish_reason":"error"}]})"}) {
    const auto exchange = begin(kChat, kShortAsk);
    const auto action = only(exchange->deliver(leg_done(1, 200, reply)));
    EXPECT_EQ(action.kind, Kind::fail) << reply;
    EXPECT_EQ(action.code, "invalid_prefill_handoff");
  }
  const std::string good = R"({"error":null,"choices":[{"finish_reason":"stop"}]})";
  EXPECT_EQ(only(begin(kChat, kShortAsk)->deliver(leg_done(1, 200, good))).kind, Kind::start);
}

// C88: decode would wait for it.
TEST_F(Offloading, PrefillReplyWithoutAnAnswerIsTold) {
  for (const std::string reply : {"", "<html>", "[]", "7", "{}", R"({"error":null})", R"({"choices":[]})",
                                  R"({"choices":[{"finish_reason":null}]})"}) {
    for (const auto status : {200U, 204U}) {
      const auto action = only(begin(kChat, kShortAsk)->deliver(leg_done(1, status, reply)));
      EXPECT_EQ(action.kind, Kind::fail) << reply;
      EXPECT_EQ(action.status, 502U);
      EXPECT_EQ(action.code, "invalid_prefill_handoff");
    }
  }
  for (const auto& [path, answer] :
       {std::pair{kResponses, R"({"output":[]})"}, std::pair{kMessages, R"({"content":[]})"}}) {
    const auto exchange = begin(path, R"({"max_tokens":4})");
    EXPECT_EQ(only(exchange->deliver(leg_done(1, 200, answer))).kind, Kind::start) << path;
  }
}

// C67: prefill first: asked at once, decode would wait for it up to 30 s.
TEST_F(Offloading, EnginesMeetByANameOfOurs) {
  const auto exchange = begin(kChat, kShortAsk, {{"x-dynamo-prefill-dp-rank", "2"}});
  const auto asked = Json::parse(only(exchange->begin_actions()).leg.body)["kv_transfer_params"];
  const auto id = asked["remote_decoder"]["kv_request_id"];
  EXPECT_EQ(asked.dump(), R"({"remote_decoder":{"kv_request_id":)" + id.dump() + "}}");
  const auto leg = only(exchange->deliver(leg_done(1, 200, kLength))).leg;
  EXPECT_EQ(Json::parse(leg.body)["kv_transfer_params"].dump(),
            R"({"remote_prefiller":{"kv_request_id":)" + id.dump() +
                R"(,"remote_host":"10.0.0.9","remote_port":5712}})");
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)).empty()) << "nothing to release";
  EXPECT_NE(
      Json::parse(prefill(kChat, kShortAsk).body)["kv_transfer_params"]["remote_decoder"]["kv_request_id"],
      id);
}

// -------------------------------------------------------------------------------------------------- mooncake

const std::string kRanks =
    R"({"0":{"engine_id":"e-0","worker_addr":{"0":{"0":"a"}}},"1":{"engine_id":"e-1"}})";

class Mooncake : public VllmCase {
 protected:
  Mooncake() : VllmCase(connector("mooncake")) {}

  Pair pair(std::string body = kShortAsk, std::vector<Header> headers = {}) {
    Pair out{begin(kChat, std::move(body), std::move(headers)), {}, {}};
    auto actions = out.exchange->begin_actions();
    if (actions.size() == 1) actions = out.exchange->deliver(leg_done(actions[0].leg.id, 200, kRanks));
    EXPECT_EQ(actions.size(), 2U);
    if (actions.size() == 2) {
      out.prefill = actions[0].leg;
      out.decode = actions[1].leg;
    }
    return out;
  }
};

// C68
TEST_F(Mooncake, AsksTheBootstrapServerThenBothEnginesAtOnce) {
  const auto exchange =
      begin(kChat, kShortAsk, {{"x-dynamo-prefill-dp-rank", "1"}, {"x-dynamo-dp-rank", "3"}});
  const auto query = only(exchange->begin_actions()).leg;
  EXPECT_EQ(query.method + " " + query.path, "GET /query");
  EXPECT_EQ(query.port, 8998U);
  EXPECT_EQ(query.role, HANDOFF_ROLE_AUXILIARY);
  EXPECT_EQ(query.deadline_ms, 5000U);
  const auto actions = exchange->deliver(leg_done(1, 200, kRanks));
  ASSERT_EQ(actions.size(), 2U);
  const auto prefill = actions[0].leg;
  const auto decode = actions[1].leg;
  EXPECT_EQ(prefill.target, HANDOFF_TARGET_PREFILL);
  EXPECT_EQ(prefill.header("x-data-parallel-rank"), "1");
  EXPECT_EQ(decode.reply, HANDOFF_REPLY_HOLD);
  EXPECT_EQ(decode.header("x-data-parallel-rank"), "3");
  const auto asked = Json::parse(prefill.body);
  const auto given = Json::parse(decode.body)["kv_transfer_params"];
  EXPECT_EQ(asked["max_tokens"], 1);
  EXPECT_EQ(asked["kv_transfer_params"]["do_remote_decode"], true);
  EXPECT_EQ(asked["kv_transfer_params"]["transfer_id"], given["transfer_id"]);
  EXPECT_EQ(given["do_remote_prefill"], true);
  EXPECT_EQ(given["remote_engine_id"], "e-1");
  EXPECT_EQ(given["remote_bootstrap_addr"], "http://10.0.0.9:8998");
  EXPECT_EQ(prefill.flags & HANDOFF_LEG_MAY_RESEND, 0U) << "a transfer id is used once";

  EXPECT_TRUE(exchange->deliver(head(decode.id, 200)).empty());
  EXPECT_TRUE(exchange->deliver(piece(decode.id, "data: {\"choices\":[]}\n\n")).empty()) << "held";
  const auto action = only(exchange->deliver(leg_done(prefill.id, 200, kLength)));
  EXPECT_EQ(action.kind, Kind::relay);
  EXPECT_EQ(action.leg_id, decode.id);
}

// C69
TEST_F(Mooncake, IPv6HostsAreBracketed) {
  Exchange exchange(backend_,
                    {.path = std::string(kChat), .body = kShortAsk, .prefill = Endpoint{"fd00::1", 8000}});
  const auto actions = exchange.deliver(leg_done(1, 200, kRanks));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(Json::parse(actions[1].leg.body)["kv_transfer_params"]["remote_bootstrap_addr"],
            "http://[fd00::1]:8998");
}

// C70: an engine id lives as long as its engine.
TEST_F(Mooncake, RanksAreRememberedUntilALegFails) {
  auto first = pair();
  auto second = pair();
  EXPECT_EQ(second.prefill.id, 1U) << "not asked again";
  EXPECT_NE(Json::parse(first.prefill.body)["kv_transfer_params"]["transfer_id"],
            Json::parse(second.prefill.body)["kv_transfer_params"]["transfer_id"]);
  const auto actions = second.exchange->deliver(leg_failed(second.prefill.id, HANDOFF_CAUSE_CONNECT));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::cancel);
  EXPECT_EQ(actions[1].kind, Kind::fail_with_leg);
  EXPECT_EQ(only(begin(kChat, kShortAsk)->begin_actions()).leg.name, "bootstrap");
}

// C71: a prefill engine that was restarted: decode refuses the old id, and the new one is asked for, once.
TEST_F(Mooncake, OldEngineIdIsAskedForAnew) {
  pair();
  for (const bool in_band : {false, true}) {
    auto stale = pair();
    const auto refusal = in_band ? piece(stale.decode.id, "data: {\"error\":{\"message\":\"x\"}}\n\n")
                                 : head(stale.decode.id, 500);
    const auto actions = stale.exchange->deliver(refusal);
    ASSERT_EQ(actions.size(), 3U);
    EXPECT_EQ(actions[0].kind, Kind::cancel);
    EXPECT_EQ(actions[1].kind, Kind::cancel);
    EXPECT_EQ(actions[2].leg.name, "bootstrap");
    const auto again = stale.exchange->deliver(leg_done(actions[2].leg.id, 200, kRanks));
    ASSERT_EQ(again.size(), 2U);
    const auto last = stale.exchange->deliver(head(again[1].leg.id, 500));
    ASSERT_EQ(last.size(), 2U);
    EXPECT_EQ(last[1].kind, Kind::relay) << "decode's own words, the second time";
    pair();  // remembers anew
  }
  EXPECT_EQ(host_.counts["started_over"], 2);
}

// C71: decode that remembers the engine waits for it, so its bootstrap server is asked when the connection is
// a new one.
TEST_F(Mooncake, BootstrapServerBehindANewConnectionIsAskedAgain) {
  const auto connected = [](const Leg& leg, std::uint32_t flags) {
    return Event{.kind = HANDOFF_EVENT_LEG_CONNECTED, .leg = leg.id, .flags = flags};
  };
  EXPECT_EQ(pair().prefill.flags, 0U) << "just asked";
  auto same = pair();
  EXPECT_TRUE(same.exchange->deliver(connected(same.prefill, HANDOFF_REUSED)).empty());
  auto query = only(same.exchange->deliver(connected(same.prefill, 0))).leg;
  EXPECT_EQ(query.name, "bootstrap");
  EXPECT_EQ(only(begin(kChat, kShortAsk)->begin_actions()).leg.name, "bootstrap") << "doubtful for others";
  EXPECT_TRUE(same.exchange->deliver(leg_done(query.id, 200, kRanks)).empty());

  for (const bool prefill_is_done : {false, true}) {
    auto stale = pair();
    query = only(stale.exchange->deliver(connected(stale.prefill, 0))).leg;
    if (prefill_is_done) stale.exchange->deliver(leg_done(stale.prefill.id, 200, kLength));
    const auto actions = stale.exchange->deliver(leg_done(query.id, 200, R"({"0":{"engine_id":"new"}})"));
    ASSERT_EQ(actions.size(), prefill_is_done ? 3U : 4U);
    EXPECT_EQ(actions[0].kind, Kind::cancel);
    EXPECT_EQ(Json::parse(actions.back().leg.body)["kv_transfer_params"]["remote_engine_id"], "new");
    // Back to the first one for the next round.
    auto next = pair();
    query = only(next.exchange->deliver(connected(next.prefill, 0))).leg;
    next.exchange->deliver(leg_done(query.id, 200, kRanks));
  }
  auto deaf = pair();
  query = only(deaf.exchange->deliver(connected(deaf.prefill, 0))).leg;
  EXPECT_TRUE(deaf.exchange->deliver(leg_failed(query.id, HANDOFF_CAUSE_CONNECT)).empty())
      << "the pair's own failure, if it is one";
  EXPECT_EQ(deaf.exchange->deliver(leg_done(deaf.prefill.id, 503, "")).at(1).kind, Kind::fail_with_leg);
}

// C89: prefill's port has another engine, and the bootstrap server is gone with the old one: decode would
// wait for it. What decode has begun, it has the blocks for.
TEST_F(Mooncake, PrefillThatNobodyConfirmsIsNotWaitedFor) {
  for (const bool check_first : {true, false}) {
    for (const bool decode_speaks : {true, false}) {
      pair();
      auto doubtful = pair();
      const auto query =
          only(doubtful.exchange->deliver(
                   {.kind = HANDOFF_EVENT_LEG_CONNECTED, .leg = doubtful.prefill.id, .flags = 0}))
              .leg;
      const auto failed = leg_failed(query.id, HANDOFF_CAUSE_CONNECT);
      const auto none = leg_done(query.id, 200, "{}");
      if (decode_speaks) doubtful.exchange->deliver(piece(doubtful.decode.id, "data: {}\n\n"));
      if (check_first) {
        EXPECT_TRUE(doubtful.exchange->deliver(failed).empty());
      }
      auto actions = doubtful.exchange->deliver(leg_done(doubtful.prefill.id, 200, kLength));
      if (!check_first && !decode_speaks) {
        EXPECT_TRUE(actions.empty());
        actions = doubtful.exchange->deliver(none);
      }
      if (decode_speaks) {
        EXPECT_EQ(only(actions).kind, Kind::relay);
        continue;
      }
      ASSERT_EQ(actions.size(), 2U);
      EXPECT_EQ(actions[0].kind, Kind::cancel);
      EXPECT_EQ(actions[0].leg_id, doubtful.decode.id);
      EXPECT_EQ(actions[1].status, 502U);
      EXPECT_EQ(actions[1].code, "invalid_prefill_handoff");
    }
  }
}

// C90: with an end as its first token prefill would hand nothing over, and decode keep its blocks.
TEST_F(Mooncake, PrefillsTokenIsNoEndWhereThePathCanSaySo) {
  struct Row {
    std::string_view path;
    std::string body, prefill_limits;
  };
  for (const auto& [path, body, limits] :
       {Row{kChat, R"({"min_tokens":5})", R"({"min_tokens":1,"max_tokens":1})"},
        Row{kCompletions, R"({"prompt":"p","min_completion_tokens":3})",
            R"({"max_tokens":1,"min_tokens":1})"},
        Row{kGenerate, R"({"sampling_params":{}})", R"({"max_tokens":1,"min_tokens":1})"},
        Row{kResponses, R"({"min_tokens":5})", R"({"max_output_tokens":1})"},
        Row{kMessages, R"({"max_tokens":5})", R"({"max_tokens":1})"}}) {
    Backend fresh(plugin_, host_, connector("mooncake"));
    Exchange exchange(fresh, {.path = std::string(path), .body = body});
    const auto legs = exchange.deliver(leg_done(1, 200, kRanks));
    ASSERT_EQ(legs.size(), 2U);
    auto asked = nlohmann::json::parse(legs[0].leg.body);
    if (path == kGenerate) asked = asked["sampling_params"];
    auto left = nlohmann::json::object();
    for (const auto& [name, value] : asked.items()) {
      if (name.find("tokens") != std::string::npos) left[name] = value;
    }
    EXPECT_EQ(left, nlohmann::json::parse(limits)) << path;
    EXPECT_EQ(legs[1].leg.body.find("\"min_tokens\":1"), std::string::npos) << "decode ends where it does";
  }
  EXPECT_EQ(Json::parse(pair().prefill.body)["min_tokens"], 1);
}

// C71: the same when prefill is the quicker one. Decode's reply is not shown before it has begun.
TEST_F(Mooncake, RememberedPrefillThatIsDoneWaitsForDecodeToSpeak) {
  pair();
  auto stale = pair();
  EXPECT_TRUE(stale.exchange->deliver(leg_done(stale.prefill.id, 200, kLength)).empty());
  const auto actions = stale.exchange->deliver(head(stale.decode.id, 500));
  ASSERT_EQ(actions.size(), 2U) << "prefill's leg is over";
  EXPECT_EQ(actions[0].kind, Kind::cancel);
  EXPECT_EQ(actions[1].leg.name, "bootstrap");
  auto again = stale.exchange->deliver(leg_done(actions[1].leg.id, 200, kRanks));
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(only(stale.exchange->deliver(leg_done(again[0].leg.id, 200, kLength))).kind, Kind::relay);

  auto good = pair();
  EXPECT_TRUE(good.exchange->deliver(leg_done(good.prefill.id, 200, kLength)).empty());
  EXPECT_TRUE(good.exchange->deliver(head(good.decode.id, 200)).empty());
  EXPECT_EQ(only(good.exchange->deliver(piece(good.decode.id, "{\"choices\":"))).kind, Kind::relay);
}

// C72: decode would wait for ever for what prefill did not finish by its limit.
TEST_F(Mooncake, PrefillThatStoppedRunsDecodeOnly) {
  auto stopped = pair();
  const auto actions = stopped.exchange->deliver(
      leg_done(stopped.prefill.id, 200, R"({"choices":[{"finish_reason":"stop"}]})"));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::cancel);
  EXPECT_EQ(actions[1].kind, Kind::decode_only);
  EXPECT_EQ(actions[1].reason, "prefill_stopped");

  for (const auto& [path, reply] : {std::pair{kMessages, R"({"content":[],"stop_reason":"end_turn"})"},
                                    std::pair{kResponses, R"({"output":[],"status":"completed"})"}}) {
    Backend fresh(plugin_, host_, connector("mooncake"));
    Exchange exchange(fresh, {.path = std::string(path), .body = R"({"max_tokens":4})"});
    const auto legs = exchange.deliver(leg_done(1, 200, kRanks));
    ASSERT_EQ(legs.size(), 2U);
    EXPECT_EQ(exchange.deliver(leg_done(legs[0].leg.id, 200, reply)).back().kind, Kind::decode_only) << path;
  }
}

// C73
TEST_F(Mooncake, FailuresCloseTheOtherLeg) {
  for (const auto status : {400U, 503U}) {
    auto failing = pair();
    const auto actions = failing.exchange->deliver(leg_done(failing.prefill.id, status, ""));
    ASSERT_EQ(actions.size(), 2U);
    EXPECT_EQ(actions[0].kind, Kind::cancel);
    EXPECT_EQ(actions[0].leg_id, failing.decode.id);
    EXPECT_EQ(actions[1].kind, Kind::fail_with_leg);
  }
  auto broken = pair();
  const auto actions = broken.exchange->deliver(leg_failed(broken.decode.id, HANDOFF_CAUSE_READ_TIMEOUT));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].leg_id, broken.prefill.id);
  EXPECT_EQ(actions[1].kind, Kind::fail_with_leg);
  auto lost_leg = pair();
  EXPECT_EQ(lost_leg.exchange->deliver(lost(lost_leg.decode.id)).at(1).leg.name, "bootstrap");
}

TEST_F(Mooncake, DecodeLostAfterPrefillIsDoneStartsBothOverOnce) {
  auto one = pair();
  EXPECT_EQ(only(one.exchange->deliver(leg_done(one.prefill.id, 200, kLength))).kind, Kind::relay);
  const auto asked = only(one.exchange->deliver(lost(one.decode.id))).leg;
  EXPECT_EQ(asked.name, "bootstrap");
  const auto legs = one.exchange->deliver(leg_done(asked.id, 200, kRanks));
  ASSERT_EQ(legs.size(), 2U);
  EXPECT_EQ(only(one.exchange->deliver(leg_done(legs[0].leg.id, 200, kLength))).kind, Kind::relay);
  EXPECT_EQ(only(one.exchange->deliver(lost(legs[1].leg.id))).kind, Kind::fail_with_leg);
}

// C85: decode would wait for ever for blocks that nobody sends.
TEST_F(Mooncake, PrefillReplyWithoutAnAnswerClosesDecodeAndIsTold) {
  for (const std::string reply :
       {R"({"error":{"message":"x","code":500}})", R"({"object":"error","code":500})", "{}",
        R"({"choices":[]})", R"({"choices":[{"finish_reason":null}]})",
        R"({"choices":[{"finish_reason":"length"}],"error":"x"})"}) {
    auto failing = pair();
    const auto actions = failing.exchange->deliver(leg_done(failing.prefill.id, 200, reply));
    ASSERT_EQ(actions.size(), 2U) << reply;
    EXPECT_EQ(actions[0].kind, Kind::cancel);
    EXPECT_EQ(actions[0].leg_id, failing.decode.id);
    EXPECT_EQ(actions[1].kind, Kind::fail);
    EXPECT_EQ(actions[1].status, 502U);
    EXPECT_EQ(actions[1].code, "invalid_prefill_handoff");
    EXPECT_EQ(only(begin(kChat, kShortAsk)->begin_actions()).leg.name, "bootstrap") << "forgotten";
  }
}

// C85: answers of paths without choices, and their errors.
TEST_F(Mooncake, AnswersOfOtherPathsAreKnown) {
  for (const auto& [path, answer, error] : std::vector<std::array<std::string, 3>>{
           {std::string(kResponses), R"({"status":"incomplete","error":null,"output":[]})",
            R"({"status":"failed","error":{"code":"server_error"},"output":[]})"},
           {std::string(kMessages), R"({"type":"message","content":[],"stop_reason":"max_tokens"})",
            R"({"type":"error"})"},
           {std::string(kGenerate), R"({"choices":[{"finish_reason":"length","token_ids":[1]}]})", "{}"}}) {
    for (const bool good : {true, false}) {
      Backend fresh(plugin_, host_, connector("mooncake"));
      Exchange exchange(fresh, {.path = path, .body = R"({"sampling_params":{},"max_tokens":4})"});
      const auto legs = exchange.deliver(leg_done(1, 200, kRanks));
      ASSERT_EQ(legs.size(), 2U);
      const auto actions = exchange.deliver(leg_done(legs[0].leg.id, 200, good ? answer : error));
      ASSERT_EQ(actions.size(), good ? 1U : 2U) << path;
      EXPECT_EQ(actions.back().kind, good ? Kind::relay : Kind::fail) << path;
    }
  }
}

// C86: the second pair would get the same answer.
TEST_F(Mooncake, ClientErrorsOfDecodeAreItsAnswer) {
  pair();
  for (const auto status : {400U, 422U, 429U}) {
    auto refused = pair();
    EXPECT_EQ(refused.prefill.id, 1U) << "the rank is remembered, and stays so";
    const auto actions = refused.exchange->deliver(head(refused.decode.id, status));
    ASSERT_EQ(actions.size(), 2U);
    EXPECT_EQ(actions[0].kind, Kind::cancel);
    EXPECT_EQ(actions[0].leg_id, refused.prefill.id);
    EXPECT_EQ(actions[1].kind, Kind::relay);
    EXPECT_EQ(actions[1].leg_id, refused.decode.id);
  }
  EXPECT_EQ(host_.counts["started_over"], 0);
}

// C74
TEST_F(Mooncake, CompleteAnswerWaitsForPrefill) {
  auto quick = pair();
  EXPECT_TRUE(quick.exchange->deliver(leg_done(quick.decode.id, 200, "")).empty());
  const auto action = only(quick.exchange->deliver(leg_done(quick.prefill.id, 200, kLength)));
  EXPECT_EQ(action.kind, Kind::relay);
}

// C75
TEST_F(Mooncake, BootstrapServerThatNamesNoRankIsAnError) {
  for (const std::string reply :
       {"", "[]", "{}", R"({"x":{"engine_id":"e"}})", R"({"0":{}})", R"({"0":{"engine_id":""}})"}) {
    const auto exchange = begin(kChat, kShortAsk);
    const auto action = only(exchange->deliver(leg_done(1, 200, reply)));
    EXPECT_EQ(action.kind, Kind::fail) << reply;
    EXPECT_EQ(action.code, "invalid_prefill_handoff");
  }
  EXPECT_EQ(only(begin(kChat, kShortAsk)->deliver(leg_done(1, 404, kRanks))).status, 502U)
      << "that path is not the client's";
  for (const auto& event : {leg_done(1, 503, ""), leg_failed(1, HANDOFF_CAUSE_CONNECT)}) {
    const auto exchange = begin(kChat, kShortAsk);
    EXPECT_EQ(only(exchange->deliver(event)).kind, Kind::fail_with_leg);
  }
}

}  // namespace
}  // namespace handoff::plugin_test
