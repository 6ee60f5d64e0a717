// What follows what: S30 to S49, and every row of the failure matrix that needs no network.
#include "tests/unit/backends/sglang/sglang_case.hpp"

namespace handoff::plugin_test {
namespace {

class SglangExchangeTest : public SglangCase {
 protected:
  void start(std::string_view path = kChat, std::string body = R"({"messages":[],"stream":true})",
             std::vector<Header> headers = {}) {
    exchange_ = begin(path, std::move(body), std::move(headers));
    take_pair(exchange_->begin_actions());
  }
  void take_pair(const std::vector<Action>& actions) {
    prefill_ = leg(actions, HANDOFF_ROLE_PREFILL);
    decode_ = leg(actions, HANDOFF_ROLE_DECODE);
    rid_ = member(decode_, "rid");
  }
  std::vector<Action> deliver(const Event& event) { return exchange_->deliver(event); }
  std::vector<Action> prefill_done(std::uint32_t status = 200, std::string body = kGoodPrefill,
                                   std::vector<Header> headers = {}) {
    auto event = leg_done(prefill_.id, status, std::move(body));
    event.headers = std::move(headers);
    return deliver(event);
  }
  static bool does(const std::vector<Action>& actions, Action::Kind kind) {
    return !of_kind(actions, kind).empty();
  }
  void expect_aborts(const std::vector<Action>& actions, bool at_prefill, bool at_decode) {
    EXPECT_EQ(aborted(actions, HANDOFF_TARGET_PREFILL),
              at_prefill ? std::vector<std::string>{rid_} : std::vector<std::string>{});
    EXPECT_EQ(aborted(actions, HANDOFF_TARGET_LOCAL),
              at_decode ? std::vector<std::string>{rid_} : std::vector<std::string>{});
  }

  std::unique_ptr<Exchange> exchange_;
  Leg prefill_;
  Leg decode_;
  std::string rid_;
};

TEST_F(SglangExchangeTest, DecodeIsShownOncePrefillIsGoodAndDecodeHasBegunWell) {
  start();
  EXPECT_TRUE(deliver(head(decode_.id)).empty());
  EXPECT_TRUE(deliver(piece(decode_.id, kFirstEvent)).empty());
  EXPECT_EQ(only(prefill_done(), Action::Kind::relay).leg_id, decode_.id);
  expect_aborts(deliver(ended(HANDOFF_OUTCOME_ANSWERED)), false, false);
}

TEST_F(SglangExchangeTest, PrefillFirstThenDecodesFirstEvent) {
  start();
  EXPECT_TRUE(prefill_done().empty());
  EXPECT_TRUE(deliver(head(decode_.id)).empty());
  EXPECT_TRUE(deliver(piece(decode_.id, kFirstEvent.substr(0, 9))).empty()) << "half an event says nothing";
  EXPECT_EQ(only(deliver(piece(decode_.id, kFirstEvent.substr(9))), Action::Kind::relay).leg_id, decode_.id);
}

TEST_F(SglangExchangeTest, DecodeThatIsCompleteBeforePrefillIsShownAllTheSame) {
  start();
  deliver(head(decode_.id));
  deliver(piece(decode_.id, kFirstEvent + "data: [DONE]\n\n"));
  EXPECT_TRUE(deliver(leg_done(decode_.id, 200, "")).empty());
  EXPECT_EQ(only(prefill_done(), Action::Kind::relay).leg_id, decode_.id);
}

TEST_F(SglangExchangeTest, PlainRepliesAreShownOnceTheyAreWholeOrTooLongForAFailure) {
  start(kChat, kChatBody);
  deliver(head(decode_.id, 200, "application/json"));
  prefill_done();
  EXPECT_TRUE(deliver(piece(decode_.id, "{\"choices\":[{")).empty());
  EXPECT_TRUE(deliver(piece(decode_.id, "}]}")).empty());
  EXPECT_TRUE(does(deliver(leg_done(decode_.id, 200, "")), Action::Kind::relay));
  start(kChat, kChatBody);
  deliver(head(decode_.id, 200, "application/json"));
  prefill_done();
  EXPECT_TRUE(
      does(deliver(piece(decode_.id, "{\"a\":\"" + std::string(33 * 1024, 'a'))), Action::Kind::relay));
}

TEST_F(SglangExchangeTest, FailuresInPlainRepliesAreFoundHoweverTheyAreCut) {
  const std::string abort =
      R"({"text":"","meta_info":{"finish_reason":{"type":"abort","message":"secret","status_code":500}}})";
  const std::string good = R"({"text":"a","meta_info":{"finish_reason":{"type":"length"}}})";
  for (const auto& [report, status] : std::vector<std::pair<std::string, std::uint32_t>>{
           {R"({"object":"error","message":"secret","code":503})", 503},
           {abort, 500},
           {"[" + good + "," + abort + "]", 500}}) {
    for (const std::size_t cut : {std::size_t{0}, std::size_t{20}, report.size() - 1}) {
      start(kChat, kChatBody);
      deliver(head(decode_.id, 200, "application/json"));
      deliver(piece(decode_.id, report.substr(0, cut)));
      deliver(piece(decode_.id, report.substr(cut)));
      EXPECT_TRUE(prefill_done().empty());
      const auto failure = only(deliver(leg_done(decode_.id, 200, "")), Action::Kind::fail);
      EXPECT_EQ(failure.status, status) << report << cut;
      EXPECT_EQ(failure.message.find("secret"), std::string::npos);
    }
  }
}

TEST_F(SglangExchangeTest, FailuresAreFoundInEventsOfSeveralFields) {
  for (const std::string event : {"event: error\ndata: {\"error\":{\"code\":503}}\n\n",
                                  ": ping\n\ndata: {\"error\":{\"code\":503}}\n\n"}) {
    start();
    prefill_done();
    deliver(head(decode_.id));
    EXPECT_EQ(only(deliver(piece(decode_.id, event)), Action::Kind::fail).status, 503U) << event;
  }
  start();  // the last event lacks its blank line
  prefill_done();
  deliver(head(decode_.id));
  deliver(piece(decode_.id, "data: {\"error\":{\"code\":503}}\n"));
  EXPECT_EQ(only(deliver(leg_done(decode_.id, 200, "")), Action::Kind::fail).status, 503U);
}

TEST_F(SglangExchangeTest, ACommentIsNoAnswer) {
  start();
  prefill_done();
  deliver(head(decode_.id));
  EXPECT_TRUE(deliver(piece(decode_.id, ": ping\n\n")).empty());
  EXPECT_TRUE(does(deliver(piece(decode_.id, kFirstEvent)), Action::Kind::relay));
}

// The sidecar reads no more than 64 KiB, if so told, of a reply that is not judged yet.
TEST_F(SglangExchangeTest, AnEventThatIsTooLongForAFailureIsShown) {
  start();
  prefill_done();
  deliver(head(decode_.id));
  EXPECT_TRUE(
      does(deliver(piece(decode_.id, "data: {\"a\":\"" + std::string(33 * 1024, 'a'))), Action::Kind::relay));
}

TEST_F(SglangExchangeTest, PrefillsStatusEndsBoth) {
  for (const std::uint32_t status : {400U, 429U, 500U, 503U}) {
    start();
    const auto actions = prefill_done(status, R"({"object":"error"})");
    EXPECT_EQ(only(actions, Action::Kind::fail_with_leg).leg_id, prefill_.id);
    expect_aborts(actions, false, true);
    EXPECT_TRUE(deliver(ended(HANDOFF_OUTCOME_ANSWERED)).empty());
  }
}

TEST_F(SglangExchangeTest, PrefillThatCannotBeReachedEndsDecode) {
  start();
  const auto actions = deliver(leg_failed(prefill_.id, HANDOFF_CAUSE_CONNECT));
  EXPECT_EQ(only(actions, Action::Kind::fail_with_leg).leg_id, prefill_.id);
  expect_aborts(actions, false, true);
}

TEST_F(SglangExchangeTest, PrefillThatBreaksOrStallsIsAbortedToo) {
  for (const auto cause : {HANDOFF_CAUSE_RESET, HANDOFF_CAUSE_READ_TIMEOUT, HANDOFF_CAUSE_DEADLINE,
                           HANDOFF_CAUSE_MALFORMED, HANDOFF_CAUSE_TOO_LARGE}) {
    start();
    const auto actions =
        deliver(leg_failed(prefill_.id, cause, HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED));
    EXPECT_EQ(only(actions, Action::Kind::fail_with_leg).leg_id, prefill_.id);
    expect_aborts(actions, true, true);
  }
}

TEST_F(SglangExchangeTest, DecodeThatRefusesFirstAnswersAndEndsPrefill) {
  start();
  const auto actions = deliver(head(decode_.id, 503, "application/json"));
  EXPECT_EQ(only(actions, Action::Kind::relay).leg_id, decode_.id);
  EXPECT_EQ(only(actions, Action::Kind::cancel).leg_id, prefill_.id);
  expect_aborts(actions, true, false);
  expect_aborts(deliver(ended(HANDOFF_OUTCOME_ANSWERED)), false, false);
}

TEST_F(SglangExchangeTest, DecodeThatFailsFirstEndsPrefill) {
  start();
  const auto actions = deliver(leg_failed(decode_.id, HANDOFF_CAUSE_CONNECT));
  EXPECT_EQ(only(actions, Action::Kind::fail_with_leg).leg_id, decode_.id);
  expect_aborts(actions, true, false);
}

TEST_F(SglangExchangeTest, ErrorsInDecodesStreamGetAStatus) {
  const std::vector<std::pair<std::string, std::uint32_t>> reports{
      {R"({"error":{"object":"error","message":"secret","code":500}})", 500},
      {R"({"error":{"message":"secret","code":503}})", 503},
      {R"({"error":{"message":"secret","code":"x"}})", 502},
      {R"({"error":"secret"})", 502},
      {R"({"text":"","meta_info":{"finish_reason":{"type":"abort","message":"secret","status_code":500}}})",
       500},
  };
  for (const auto& [report, status] : reports) {
    start();
    deliver(head(decode_.id));
    const auto actions = deliver(piece(decode_.id, "data: " + report + "\n\ndata: [DONE]\n\n"));
    const auto failure = only(actions, Action::Kind::fail);
    EXPECT_EQ(failure.status, status) << report;
    EXPECT_EQ(failure.code, "decode_upstream_error");
    EXPECT_EQ(failure.message.find("secret"), std::string::npos);
    expect_aborts(actions, true, true);
  }
}

TEST_F(SglangExchangeTest, ClientErrorsInDecodesAnswerAreTheAnswerAsThePlainOneWouldBe) {
  const std::string flat = R"({"object":"error","message":"no \"such\" field","type":"X","code":400})";
  const std::string generate = R"({"error":{"message":"no such rank","code":422,"retryable":false}})";
  const std::string abort =
      R"({"meta_info":{"finish_reason":{"type":"abort","message":"too \n long","status_code":400}}})";
  struct Report {
    std::string text, answer;
    std::uint32_t status;
  };
  for (const auto& [text, answer, status] :
       {Report{flat, flat, 400}, Report{R"({"error":)" + flat + "}", flat, 400},
        Report{generate, generate, 422}, Report{abort, R"({"error":{"message":"too \n long"}})", 400},
        Report{"[{\"text\":\"a\"}," + abort + "]", R"({"error":{"message":"too \n long"}})", 400}}) {
    for (const bool streamed : {true, false}) {
      start(kChat, streamed ? R"({"messages":[],"stream":true})" : R"({"messages":[]})");
      deliver(head(decode_.id, 200, streamed ? "text/event-stream" : "application/json"));
      auto actions = deliver(piece(decode_.id, streamed ? "data: " + text + "\n\ndata: [DONE]\n\n" : text));
      if (!streamed) actions = deliver(leg_done(decode_.id, 200, ""));
      const auto told = only(actions, Action::Kind::respond);
      EXPECT_EQ(told.status, status) << text;
      EXPECT_EQ(told.body, answer) << text;
      expect_aborts(actions, true, streamed);
      EXPECT_TRUE(deliver(ended(HANDOFF_OUTCOME_ANSWERED)).empty());
    }
  }
  // An abort without a message has nothing to tell.
  start();
  deliver(head(decode_.id));
  const auto actions = deliver(piece(
      decode_.id, "data: {\"meta_info\":{\"finish_reason\":{\"type\":\"abort\",\"status_code\":400}}}\n\n"));
  EXPECT_EQ(only(actions, Action::Kind::fail).status, 400U);
}

TEST_F(SglangExchangeTest, AnErrorThatComesAfterGoodEventsBeforePrefillIsDoneCounts) {
  start();
  deliver(head(decode_.id));
  deliver(piece(decode_.id, kFirstEvent));
  const auto actions = deliver(piece(decode_.id, "data: {\"error\":{\"code\":500}}\r\n\r\n"));
  EXPECT_TRUE(does(actions, Action::Kind::fail));
}

TEST_F(SglangExchangeTest, SomebodysAbortIsAnAnswer) {
  start(kGenerate, R"({"text":"a","stream":true})");
  deliver(head(decode_.id));
  deliver(piece(decode_.id,
                "data: {\"meta_info\":{\"finish_reason\":{\"type\":\"abort\",\"status_code\":null}}}\n\n"));
  const auto good = R"({"meta_info":{"finish_reason":{"type":"length"}}})";
  EXPECT_TRUE(does(prefill_done(200, good), Action::Kind::relay));
}

TEST_F(SglangExchangeTest, ClientGoneAbortsWhatRuns) {
  start();
  expect_aborts(deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)), true, true);
  start();
  prefill_done();
  expect_aborts(deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)), false, true);
  start();
  deliver(head(decode_.id));
  deliver(piece(decode_.id, kFirstEvent));
  prefill_done();
  expect_aborts(deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE)), false, true);
}

TEST_F(SglangExchangeTest, ABrokenStreamIsAborted) {
  start();
  deliver(head(decode_.id));
  deliver(piece(decode_.id, kFirstEvent));
  prefill_done();
  expect_aborts(deliver(ended(HANDOFF_OUTCOME_BROKEN)), false, true);
}

TEST_F(SglangExchangeTest, ShutdownAborts) {
  start();
  expect_aborts(deliver(ended(HANDOFF_OUTCOME_SHUTDOWN)), true, true);
}

TEST_F(SglangExchangeTest, AbortsCarryTheClientsKeyAndNothingElse) {
  start(kChat, kChatBody, {{"Authorization", "Bearer k"}, {"x-other", "1"}});
  const auto actions = deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE));
  const auto call = of_kind(actions, Action::Kind::background).front().leg;
  EXPECT_EQ(call.header("authorization"), "Bearer k");
  EXPECT_EQ(call.header("content-type"), "application/json");
  EXPECT_NE(call.flags & HANDOFF_LEG_NO_CLIENT_HEADERS, 0U);
}

TEST_F(SglangExchangeTest, EachItemOfABatchIsAborted) {
  const auto exchange = begin(kCompletions, R"({"prompt":["a","b"]})");
  const auto rids =
      member(leg(exchange->begin_actions(), HANDOFF_ROLE_DECODE), "rid").get<std::vector<std::string>>();
  const auto actions = exchange->deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE));
  EXPECT_EQ(aborted(actions, HANDOFF_TARGET_PREFILL), rids);
  EXPECT_EQ(aborted(actions, HANDOFF_TARGET_LOCAL), rids);
}

TEST_F(SglangExchangeTest, ARequestLostInTransitIsPairedAnewOnce) {
  start();
  const auto first_rid = rid_;
  const auto first_room = member(decode_, "bootstrap_room");
  const auto old_prefill = prefill_.id;
  const auto lost = HANDOFF_REQUEST_SENT | HANDOFF_REUSED;
  const auto actions = deliver(leg_failed(decode_.id, HANDOFF_CAUSE_RESET, lost));
  EXPECT_EQ(only(actions, Action::Kind::cancel).leg_id, old_prefill);
  expect_aborts(actions, true, true);
  take_pair(actions);
  EXPECT_NE(rid_, first_rid);
  EXPECT_NE(member(decode_, "bootstrap_room"), first_room);
  EXPECT_EQ(host_.counts["started_over"], 1);
  const auto again = deliver(leg_failed(prefill_.id, HANDOFF_CAUSE_RESET, lost));
  EXPECT_TRUE(does(again, Action::Kind::fail_with_leg)) << "once only";
}

TEST_F(SglangExchangeTest, WhatTheEngineCallsRetryableIsPairedAnewOnce) {
  start();
  const std::vector<Header> yes{{"x-sglang-retryable", "true"},
                                {"x-sglang-pd-reason", "PD_CAPACITY_EXHAUSTED"}};
  const auto actions = prefill_done(503, "{}", yes);
  expect_aborts(actions, false, true);
  take_pair(actions);
  EXPECT_EQ(host_.counts["pd_capacity_exhausted"], 1);
  EXPECT_TRUE(does(prefill_done(503, "{}", yes), Action::Kind::fail_with_leg));
  start();
  EXPECT_TRUE(does(deliver(head(decode_.id, 503, "application/json", yes)), Action::Kind::start));
}

TEST_F(SglangExchangeTest, WhatAnEventCallsRetryableIsPairedAnewOnce) {
  const auto event = [](std::string value) {
    return "data: {\"error\":{\"message\":\"secret\",\"code\":503,\"retryable\":" + std::move(value) +
           "}}\n\n";
  };
  start();
  deliver(head(decode_.id));
  auto actions = deliver(piece(decode_.id, event("true")));
  expect_aborts(actions, true, true);
  const auto room = member(decode_, "bootstrap_room");
  take_pair(actions);
  EXPECT_NE(member(decode_, "bootstrap_room"), room);
  deliver(head(decode_.id));
  EXPECT_EQ(only(deliver(piece(decode_.id, event("true"))), Action::Kind::fail).status, 503U) << "once only";
  start();
  deliver(head(decode_.id));
  EXPECT_TRUE(does(deliver(piece(decode_.id, event("false"))), Action::Kind::fail));
}

// S70: wherever it stands.
TEST_F(SglangExchangeTest, TypedErrorsInA200AreHonoured) {
  const std::vector<Header> typed{{"x-sglang-retryable", "true"},
                                  {"x-sglang-pd-reason", "PD_TRANSFER_FAILED"}};
  const std::string error = R"({"error":{"message":"m","code":503}})";
  for (const bool of_prefill : {true, false}) {
    auto exchange = begin(kChat, kChatBody);
    const auto prefill = leg(exchange->begin_actions(), HANDOFF_ROLE_PREFILL);
    const auto decode = leg(exchange->begin_actions(), HANDOFF_ROLE_DECODE);
    std::vector<Action> actions;
    if (of_prefill) {
      auto event = leg_done(prefill.id, 200, error);
      event.headers = typed;
      actions = exchange->deliver(event);
    } else {
      exchange->deliver(head(decode.id, 200, "text/event-stream", typed));
      actions = exchange->deliver(piece(decode.id, "data: " + error + "\n\n"));
    }
    EXPECT_EQ(of_kind(actions, Action::Kind::start).size(), 2U) << "a second pair";
  }
  EXPECT_EQ(host_.counts["pd_transfer_failed"], 2);
  EXPECT_EQ(host_.counts["started_over"], 2);
}

TEST_F(SglangExchangeTest, WhatIsNotRetryableIsNotTriedAgain) {
  start();
  const auto actions =
      prefill_done(503, "{}", {{"x-sglang-retryable", "false"}, {"x-sglang-pd-reason", "PD_\r\nevil"}});
  EXPECT_TRUE(does(actions, Action::Kind::fail_with_leg));
  EXPECT_EQ(host_.counts["pd_other_reason"], 1);
}

TEST_F(SglangExchangeTest, DecodeThatFailsBeforeItsFirstByteIsReported) {
  start();
  deliver(head(decode_.id));
  deliver(piece(decode_.id, kFirstEvent));
  prefill_done();
  const auto actions =
      deliver(leg_failed(decode_.id, HANDOFF_CAUSE_RESET, HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED));
  EXPECT_EQ(only(actions, Action::Kind::fail_with_leg).leg_id, decode_.id);
  expect_aborts(actions, false, true);
}

}  // namespace
}  // namespace handoff::plugin_test
