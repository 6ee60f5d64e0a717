// The course of a request, generation first (T40 to T52 of backends/trtllm/PROTOCOL.md).
#include <nlohmann/json.hpp>

#include "tests/unit/backends/trtllm/trtllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Kind = Action::Kind;

const std::string kInfo =
    R"({"version":"x","disaggregated_params":{"ctx_dp_rank":3,"ctx_info_endpoint":["tcp://10.0.0.9:7000","b"],"k":1.50}})";
const std::string kAsk = R"({"messages":[],"stream":true})";

Event sent(std::uint32_t leg) {
  return {.kind = HANDOFF_EVENT_LEG_SENT, .leg = leg, .flags = HANDOFF_REQUEST_SENT};
}
Event head(std::uint32_t leg, std::uint32_t status) {
  return {.kind = HANDOFF_EVENT_LEG_HEAD, .leg = leg, .status = status, .flags = 5};
}
Event piece(std::uint32_t leg, std::string body) {
  return {.kind = HANDOFF_EVENT_LEG_BODY, .leg = leg, .status = 200, .body = std::move(body), .flags = 5};
}

class GenerationFirst : public TrtllmCase {
 protected:
  explicit GenerationFirst(std::map<std::string, std::string> more = {})
      : TrtllmCase(with_schedule(std::move(more))) {}

  /// Leg 1 (/server_info) is done, leg 2 (generation) and leg 3 (context) run.
  std::unique_ptr<Exchange> pairing() {
    auto exchange = begin(kChat, kAsk);
    EXPECT_EQ(only(exchange->begin_actions()).leg.name, "server_info");
    EXPECT_EQ(only(exchange->deliver(leg_done(1, 200, kInfo))).leg.id, 2U);
    EXPECT_EQ(only(exchange->deliver(sent(2))).leg.id, 3U);
    return exchange;
  }

 private:
  static std::map<std::string, std::string> with_schedule(std::map<std::string, std::string> settings) {
    settings["DYN_SIDECAR_TRTLLM_SCHEDULE"] = "generation-first";
    return settings;
  }
};

// T40, T41, T42
TEST_F(GenerationFirst, AsksForTheAddressThenGenerationThenContext) {
  const auto exchange = begin(kChat, kAsk, {{"authorization", "Bearer k"}, {"cookie", "c"}});
  const auto info = only(exchange->begin_actions()).leg;
  EXPECT_EQ(info.method + " " + info.path, "GET /server_info");
  EXPECT_EQ(info.role, HANDOFF_ROLE_AUXILIARY);
  EXPECT_EQ(info.target, HANDOFF_TARGET_PREFILL);
  EXPECT_EQ(info.flags, HANDOFF_LEG_MAY_RESEND | HANDOFF_LEG_NO_CLIENT_HEADERS);
  EXPECT_EQ(info.headers, (std::vector<Header>{{"authorization", "Bearer k"}}));

  const auto generation = only(exchange->deliver(leg_done(1, 200, kInfo))).leg;
  EXPECT_EQ(generation.role, HANDOFF_ROLE_DECODE);
  EXPECT_EQ(generation.reply, HANDOFF_REPLY_HOLD);
  EXPECT_NE(generation.flags & HANDOFF_LEG_WANT_SENT, 0U) << "context comes when generation has the request";
  EXPECT_EQ(generation.linger_ms, 30'000U);
  const auto params = OrderedJson::parse(generation.body)["disaggregated_params"];
  const auto id = params["disagg_request_id"];
  EXPECT_EQ(params["request_type"], "generation_only");
  EXPECT_EQ(params["ctx_request_id"], id);
  EXPECT_EQ(params["ctx_info_endpoint"], "tcp://10.0.0.9:7000");
  EXPECT_EQ(params["ctx_dp_rank"], 3);
  EXPECT_EQ(params["schedule_style"], 1);
  EXPECT_NE(generation.body.find("1.50"), std::string::npos) << "what else the engine announces goes along";
  EXPECT_EQ(OrderedJson::parse(generation.body)["stream"], true);

  const auto context = only(exchange->deliver(sent(2))).leg;
  EXPECT_EQ(context.role, HANDOFF_ROLE_PREFILL);
  EXPECT_EQ(context.reply, HANDOFF_REPLY_COLLECT);
  const auto asked = OrderedJson::parse(context.body);
  EXPECT_EQ(asked["stream"], false);
  EXPECT_EQ(asked["disaggregated_params"]["request_type"], "context_only");
  EXPECT_EQ(asked["disaggregated_params"]["disagg_request_id"], id);
  EXPECT_EQ(asked["disaggregated_params"]["schedule_style"], 1);

  EXPECT_TRUE(exchange->deliver(head(2, 200)).empty()) << "held";
  EXPECT_TRUE(exchange->deliver(piece(2, "data: {\"choices\":[]}\n\n")).empty());
  const auto relayed = only(exchange->deliver(leg_done(3, 200, context_reply())));
  EXPECT_EQ(relayed.kind, Kind::relay);
  EXPECT_EQ(relayed.leg_id, 2U);
}

// T43
TEST_F(GenerationFirst, TheAddressIsRememberedPerEndpointAndForgottenOnFailure) {
  pairing();
  const auto again = begin(kChat, kAsk);
  EXPECT_EQ(only(again->begin_actions()).leg.role, HANDOFF_ROLE_DECODE) << "not asked twice";
  const Exchange other(backend_,
                       {.path = std::string(kChat), .body = kAsk, .prefill = Endpoint{"10.0.0.9", 8001}});
  EXPECT_EQ(other.begin_actions().at(0).leg.name, "server_info");
  again->deliver(sent(1));
  again->deliver(leg_done(2, 503, ""));
  EXPECT_EQ(only(begin(kChat, kAsk)->begin_actions()).leg.name, "server_info");
}

// T43: generation asks in vain at an address where nobody is any more. A 4xx is about the request.
TEST_F(GenerationFirst, TheAddressIsForgottenWhenGenerationFailsInItsOwnWords) {
  const std::string error = "data: {\"error\":{\"message\":\"x\"}}\n\n";
  for (const auto& [failure, forgets] : std::vector<std::pair<Event, bool>>{
           {head(2, 500), true}, {head(2, 503), true}, {piece(2, error), true}, {head(2, 400), false}}) {
    pairing()->deliver(failure);
    const auto next = begin(kChat, kAsk);
    EXPECT_EQ(only(next->begin_actions()).leg.role, forgets ? HANDOFF_ROLE_AUXILIARY : HANDOFF_ROLE_DECODE)
        << failure.status << failure.body;
  }
}

// T43: a context that has done its part may have done so for somebody else.
TEST_F(GenerationFirst, TheAddressIsForgottenWhenARelayedAnswerBreaks) {
  const auto exchange = pairing();
  EXPECT_EQ(only(exchange->deliver(leg_done(3, 200, context_reply()))).kind, Kind::relay);
  EXPECT_EQ(only(exchange->deliver(leg_failed(2, HANDOFF_CAUSE_READ_TIMEOUT, HANDOFF_REQUEST_SENT))).kind,
            Kind::fail_with_leg);
  EXPECT_EQ(only(begin(kChat, kAsk)->begin_actions()).leg.name, "server_info");
}

// T57
TEST_F(GenerationFirst, ContextBehindANewConnectionIsAskedAgain) {
  const auto connected = [](std::uint32_t leg, std::uint32_t flags) {
    return Event{.kind = HANDOFF_EVENT_LEG_CONNECTED, .leg = leg, .flags = flags};
  };
  EXPECT_EQ(pairing()->running().at(3).flags, 0U) << "just asked";
  const auto remembered = [&] {
    auto exchange = begin(kChat, kAsk);
    EXPECT_EQ(only(exchange->deliver(sent(1))).leg.flags, HANDOFF_LEG_WANT_CONNECTED);
    return exchange;
  };
  auto exchange = remembered();
  EXPECT_TRUE(exchange->deliver(connected(2, HANDOFF_REUSED)).empty());
  EXPECT_EQ(only(exchange->deliver(connected(2, 0))).leg.name, "server_info");
  EXPECT_EQ(only(begin(kChat, kAsk)->begin_actions()).leg.name, "server_info") << "doubtful for others";
  EXPECT_TRUE(exchange->deliver(leg_done(3, 200, kInfo)).empty());
  EXPECT_EQ(only(exchange->deliver(leg_done(2, 200, context_reply()))).kind, Kind::relay);

  const auto other = R"({"disaggregated_params":{"ctx_info_endpoint":"tcp://10.0.0.9:7001"}})";
  exchange = remembered();
  exchange->deliver(connected(2, 0));
  auto actions = exchange->deliver(leg_done(3, 200, other));
  ASSERT_EQ(actions.size(), 3U);
  EXPECT_EQ(actions[0].kind, Kind::cancel);
  EXPECT_EQ(actions[1].kind, Kind::cancel);
  EXPECT_NE(actions[2].leg.body.find("tcp://10.0.0.9:7001"), std::string::npos);
  EXPECT_EQ(only(exchange->deliver(sent(actions[2].leg.id))).leg.flags, 0U) << "just asked";

  // A good answer means nothing before the engine is known.
  exchange = remembered();
  exchange->deliver(connected(2, 0));
  EXPECT_TRUE(exchange->deliver(leg_done(2, 200, context_reply())).empty());
  EXPECT_EQ(only(exchange->deliver(leg_done(3, 200, other))).kind, Kind::relay);

  exchange = remembered();
  exchange->deliver(connected(2, 0));
  EXPECT_TRUE(exchange->deliver(leg_done(2, 200, context_reply())).empty());
  actions = exchange->deliver(leg_done(3, 404, "{}"));
  EXPECT_EQ(actions.back().kind, Kind::fail);
  EXPECT_EQ(actions.back().status, 502U);
  EXPECT_EQ(host_.counts["engine_changed"], 2);
}

// T43: an engine needs longer to start than that.
TEST_F(GenerationFirst, TheAddressIsBelievedForFiveSecondsAndAfterSuccess) {
  pairing();
  host_.now_ms += 4000;
  const auto next = begin(kChat, kAsk);
  const auto generation = only(next->begin_actions()).leg;
  ASSERT_EQ(generation.role, HANDOFF_ROLE_DECODE);
  next->deliver(leg_done(only(next->deliver(sent(generation.id))).leg.id, 200, context_reply()));
  host_.now_ms += 5000;
  EXPECT_EQ(only(begin(kChat, kAsk)->begin_actions()).leg.role, HANDOFF_ROLE_DECODE);
  host_.now_ms += 1;
  EXPECT_EQ(only(begin(kChat, kAsk)->begin_actions()).leg.name, "server_info");
}

// T44
TEST_F(GenerationFirst, EngineThatAnnouncesNoAddressIsAnError) {
  for (const std::string info :
       {"", "[]", "{}", R"({"disaggregated_params":null})", R"({"disaggregated_params":{}})",
        R"({"disaggregated_params":{"ctx_info_endpoint":null}})",
        R"({"disaggregated_params":{"ctx_info_endpoint":[]}})",
        R"({"disaggregated_params":{"ctx_info_endpoint":[7]}})",
        R"({"disaggregated_params":{"ctx_info_endpoint":""}})"}) {
    const auto exchange = begin(kChat, kAsk);
    const auto action = only(exchange->deliver(leg_done(1, 200, info)));
    EXPECT_EQ(action.kind, Kind::fail) << info;
    EXPECT_EQ(action.status, 502U);
    EXPECT_NE(action.message.find("ctx_info_endpoint"), std::string::npos);
  }
  const auto text = begin(kChat, kAsk);
  const auto action =
      only(text->deliver(leg_done(1, 200, R"({"disaggregated_params":{"ctx_info_endpoint":"a:1"}})")));
  EXPECT_EQ(OrderedJson::parse(action.leg.body)["disaggregated_params"]["ctx_info_endpoint"], "a:1");
}

// T45
TEST_F(GenerationFirst, FailureOfTheQuestionIsTheSidecarsToTell) {
  for (const auto& event :
       {leg_done(1, 401, ""), leg_done(1, 500, kInfo), leg_failed(1, HANDOFF_CAUSE_CONNECT)}) {
    const auto exchange = begin(kChat, kAsk);
    const auto action = only(exchange->deliver(event));
    EXPECT_EQ(action.kind, Kind::fail_with_leg);
    EXPECT_EQ(action.leg_id, 1U);
  }
  const auto none = only(begin(kChat, kAsk)->deliver(leg_done(1, 404, "")));
  EXPECT_EQ(none.kind, Kind::fail) << "that path is not the client's";
  EXPECT_EQ(none.status, 502U);
}

// T46
TEST_F(GenerationFirst, ContextThatFailsClosesGenerationAtOnce) {
  for (const auto& event :
       {leg_done(3, 500, ""), leg_done(3, 400, ""), leg_failed(3, HANDOFF_CAUSE_CONNECT)}) {
    host_.counts.clear();
    const Backend fresh(plugin_, host_, {{"DYN_SIDECAR_TRTLLM_SCHEDULE", "generation-first"}});
    const auto exchange = begin(kChat, kAsk);
    std::uint32_t leg = only(exchange->begin_actions()).leg.id;
    if (exchange->begin_actions()[0].leg.name == "server_info")
      leg = only(exchange->deliver(leg_done(leg, 200, kInfo))).leg.id;
    const auto context = only(exchange->deliver(sent(leg))).leg.id;
    auto failure = event;
    failure.leg = context;
    const auto actions = exchange->deliver(failure);
    ASSERT_EQ(actions.size(), 2U);
    EXPECT_EQ(actions[0].kind, Kind::cancel) << "explicitly, so that it does not linger";
    EXPECT_EQ(actions[0].leg_id, leg);
    EXPECT_EQ(actions[1].kind, Kind::fail_with_leg);
    EXPECT_EQ(actions[1].leg_id, context);
  }
}

// T46: it may have been sending blocks.
TEST_F(GenerationFirst, ContextThatBreaksOffLetsGenerationLinger) {
  for (const auto cause : {HANDOFF_CAUSE_READ_TIMEOUT, HANDOFF_CAUSE_RESET, HANDOFF_CAUSE_MALFORMED}) {
    const auto exchange = pairing();  // asks anew each time: a failure makes it forget the address
    const auto action = only(exchange->deliver(leg_failed(3, cause, HANDOFF_REQUEST_SENT)));
    EXPECT_EQ(action.kind, Kind::fail_with_leg);
    EXPECT_EQ(action.leg_id, 3U);
  }
}

// T47
TEST_F(GenerationFirst, GenerationThatFailsClosesContextAndIsTheAnswer) {
  for (const auto& event :
       {head(2, 400), head(2, 503), piece(2, "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n")}) {
    auto exchange = begin(kChat, kAsk);
    std::uint32_t generation = only(exchange->begin_actions()).leg.id;
    if (exchange->begin_actions()[0].leg.name == "server_info")
      generation = only(exchange->deliver(leg_done(generation, 200, kInfo))).leg.id;
    const auto context = only(exchange->deliver(sent(generation))).leg.id;
    auto failure = event;
    failure.leg = generation;
    const auto actions = exchange->deliver(failure);
    ASSERT_EQ(actions.size(), 2U);
    EXPECT_EQ(actions[0].kind, Kind::cancel);
    EXPECT_EQ(actions[0].leg_id, context);
    EXPECT_EQ(actions[1].kind, Kind::relay);
    EXPECT_EQ(actions[1].leg_id, generation);
  }
}

// T48
TEST_F(GenerationFirst, GenerationThatCantBeReachedNeverTroublesContext) {
  const auto exchange = begin(kChat, kAsk);
  exchange->deliver(leg_done(1, 200, kInfo));
  const auto action = only(exchange->deliver(leg_failed(2, HANDOFF_CAUSE_CONNECT)));
  EXPECT_EQ(action.kind, Kind::fail_with_leg);
  EXPECT_EQ(action.leg_id, 2U);
}

// T49
TEST_F(GenerationFirst, CompleteAnswerWaitsForContext) {
  const auto exchange = pairing();
  EXPECT_TRUE(exchange->deliver(leg_done(2, 200, "")).empty());
  const auto action = only(exchange->deliver(leg_done(3, 200, context_reply())));
  EXPECT_EQ(action.kind, Kind::relay);
  EXPECT_EQ(action.leg_id, 2U);
}

// T50
TEST_F(GenerationFirst, LegLostOnAKeptConnectionStartsBothOverOnce) {
  const auto lost = [](std::uint32_t leg) {
    return leg_failed(leg, HANDOFF_CAUSE_RESET, HANDOFF_REUSED | HANDOFF_REQUEST_SENT);
  };
  const auto exchange = pairing();
  const auto actions = exchange->deliver(lost(2));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::cancel);
  EXPECT_EQ(actions[1].leg.name, "server_info") << "the engine may be another by now";
  EXPECT_EQ(only(exchange->deliver(leg_done(4, 200, kInfo))).leg.id, 5U);
  EXPECT_EQ(only(exchange->deliver(sent(5))).leg.id, 6U);
  EXPECT_EQ(only(exchange->deliver(lost(6))).kind, Kind::fail_with_leg);
}

TEST_F(GenerationFirst, GenerationLostAfterContextIsDoneStartsBothOver) {
  const auto exchange = pairing();
  EXPECT_EQ(only(exchange->deliver(leg_done(3, 200, context_reply()))).kind, Kind::relay);
  const auto lost = leg_failed(2, HANDOFF_CAUSE_RESET, HANDOFF_REUSED | HANDOFF_REQUEST_SENT);
  EXPECT_EQ(only(exchange->deliver(lost)).leg.name, "server_info");
}

// T51
TEST_F(GenerationFirst, ClientThatLeavesBetweenTheLegsLetsContextFinish) {
  EXPECT_TRUE(pairing()->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE, HANDOFF_REQUEST_SENT)).empty());
  const auto exchange = begin(kChat, kAsk);  // the address is known by now: its first leg is generation's
  const auto action = only(exchange->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE, HANDOFF_REQUEST_SENT)));
  EXPECT_EQ(action.kind, Kind::background);
  EXPECT_EQ(action.leg.name, "finish_context");
  EXPECT_EQ(OrderedJson::parse(action.leg.body)["disaggregated_params"]["request_type"], "context_only");
}

// T51: the sidecar closes a leg of which nothing was sent, so nobody waits for context.
TEST_F(GenerationFirst, ClientThatLeavesBeforeGenerationWasAskedLeavesNothing) {
  const auto exchange = begin(kChat, kAsk);
  EXPECT_EQ(only(exchange->deliver(leg_done(1, 200, kInfo))).leg.id, 2U);
  EXPECT_TRUE(exchange->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)).empty());
  EXPECT_EQ(host_.counts["generation_lingers"], 0);
}

// T53: context has answered something that is no completion; blocks may be with generation all the same.
TEST_F(GenerationFirst, ContextReplyThatIsNoCompletionIsRefused) {
  const auto exchange = pairing();
  const auto action = only(exchange->deliver(leg_done(3, 200, "<html>")));
  EXPECT_EQ(action.kind, Kind::fail);
  EXPECT_EQ(action.code, "invalid_prefill_handoff");
}

// T55: the gate of context first holds here too.
TEST_F(GenerationFirst, ContextReplyThatGoesNowhereIsToldAtOnce) {
  for (const std::string reply : {R"({"choices":[]})", R"({"choices":[{"index":0}]})", R"({"choices":[7]})",
                                  R"({"choices":[{"finish_reason":"length"},{"finish_reason":"length"}]})"}) {
    const auto action = only(pairing()->deliver(leg_done(3, 200, reply)));
    EXPECT_EQ(action.kind, Kind::fail) << reply;
    EXPECT_EQ(action.status, 502U);
    EXPECT_EQ(action.code, "invalid_prefill_handoff");
  }
}

// T55: whoever reports an error sends no blocks.
TEST_F(GenerationFirst, ContextThatReportsAnErrorWithStatus200ClosesGeneration) {
  for (const std::string reply :
       {R"({"choices":[{"finish_reason":"length"}],"error":{"code":500}})", R"({"error":"x"})"}) {
    const auto actions = pairing()->deliver(leg_done(3, 200, reply));
    ASSERT_EQ(actions.size(), 2U) << reply;
    EXPECT_EQ(actions[0].kind, Kind::cancel);
    EXPECT_EQ(actions[0].leg_id, 2U);
    EXPECT_EQ(actions[1].code, "invalid_prefill_handoff");
  }
}

// T56
TEST_F(GenerationFirst, RequestThatEndsInTheContextPhaseIsAnsweredFromThere) {
  host_.now_ms = 1;
  std::uint32_t next = 0;
  for (const std::string finish : {"stop", "error"}) {
    const auto exchange = begin(kChat, kAsk);
    if (exchange->begin_actions()[0].leg.name == "server_info") {
      exchange->deliver(leg_done(1, 200, kInfo));
      next = 2;
    } else {
      next = 1;
    }
    EXPECT_EQ(only(exchange->deliver(sent(next))).leg.id, next + 1);
    EXPECT_TRUE(exchange->deliver(head(next, 200)).empty()) << "comes before the blocks";
    const auto actions = exchange->deliver(leg_done(next + 1, 200, context_reply(kContextParams, finish)));
    ASSERT_EQ(actions.size(), 2U) << finish;
    EXPECT_EQ(actions[0].kind, Kind::cancel);
    EXPECT_EQ(actions[0].leg_id, next);
    EXPECT_EQ(actions[1].kind, Kind::respond);
    EXPECT_EQ(actions[1].body.find("disaggregated_params"), std::string::npos);
    EXPECT_NE(actions[1].body.find("data: [DONE]"), std::string::npos) << "as the client asked";
  }
  EXPECT_EQ(host_.counts["finished_in_context"], 2);
}

// T56: it has its blocks then, so its answer is as good, and the client's stream may be on its way.
TEST_F(GenerationFirst, GenerationThatSpeaksFirstIsTheAnswerOfAFinishedRequest) {
  const auto exchange = pairing();
  EXPECT_TRUE(exchange->deliver(piece(2, "data: {\"choices\":[]}\n\n")).empty());
  const auto action = only(exchange->deliver(leg_done(3, 200, context_reply(kContextParams, "stop"))));
  EXPECT_EQ(action.kind, Kind::relay);
  EXPECT_EQ(action.leg_id, 2U);
}

class GenerationFirstSigned : public GenerationFirst {
 protected:
  GenerationFirstSigned() : GenerationFirst({{"DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE", "s3cret key\n"}}) {}
};

// T52
TEST_F(GenerationFirstSigned, TheAddressIsSigned) {
  const auto exchange = begin(kChat, kAsk);
  const auto leg = only(exchange->deliver(leg_done(1, 200, kInfo))).leg;
  const auto signature = leg.header("x-trtllm-disagg-auth").value_or("");
  EXPECT_EQ(signature.substr(0, 7), "sha256=");
  EXPECT_EQ(signature.size(), 7U + 64U);
  EXPECT_EQ(only(exchange->deliver(sent(2))).leg.header("x-trtllm-disagg-auth"), "")
      << "nothing to sign there";
}

}  // namespace
}  // namespace handoff::plugin_test
