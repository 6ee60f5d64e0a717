// Prefill's log-probabilities in decode's answer: S60 to S66.
#include <algorithm>

#include "tests/unit/backends/sglang/sglang_case.hpp"

namespace handoff::plugin_test {
namespace {

constexpr const char* kSingle = R"({"text":"a","return_logprob":true})";
constexpr const char* kStream = R"({"text":"a","return_logprob":true,"stream":true})";
const std::string kPrefillLogprobs =
    R"({"text":"x","meta_info":{"finish_reason":{"type":"length"},"input_token_logprobs":[[null,1,null],[-0.5,2,null]],)"
    R"("input_top_logprobs":[null,[[-0.5,2,null]]]}})";

class SglangMergedAnswer : public SglangCase {
 protected:
  void start(std::string body) {
    exchange_ = begin(kGenerate, std::move(body));
    prefill_ = leg(exchange_->begin_actions(), HANDOFF_ROLE_PREFILL);
    decode_ = leg(exchange_->begin_actions(), HANDOFF_ROLE_DECODE);
  }
  std::vector<Action> decode_done(std::string body) {
    auto event = leg_done(decode_.id, 200, std::move(body));
    event.headers = {{"content-type", "application/json"}};
    return exchange_->deliver(event);
  }
  static std::string written(const std::vector<Action>& actions) {
    std::string out;
    for (const auto& action : actions) {
      if (action.kind == Action::Kind::write || action.kind == Action::Kind::respond) out += action.body;
    }
    return out;
  }
  std::unique_ptr<Exchange> exchange_;
  Leg prefill_;
  Leg decode_;
};

TEST_F(SglangMergedAnswer, PrefillsListComesBeforeDecodes) {
  start(kSingle);
  EXPECT_EQ(decode_.reply, HANDOFF_REPLY_COLLECT);
  exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs));
  const auto reply = only(
      decode_done(R"({"text":"yz","meta_info":{"id":"1","input_token_logprobs": [[-1.0,3,null]],"x":1.50}})"),
      Action::Kind::respond);
  EXPECT_EQ(reply.status, 200U);
  EXPECT_EQ(reply.body, R"({"text":"yz","meta_info":{"input_top_logprobs":[null,[[-0.5,2,null]]],"id":"1",)"
                        R"("input_token_logprobs": [[null,1,null],[-0.5,2,null],[-1.0,3,null]],"x":1.50}})");
}

TEST_F(SglangMergedAnswer, TheOrderOfTheLegsDoesNotMatter) {
  start(kSingle);
  EXPECT_TRUE(decode_done(R"({"meta_info":{"input_token_logprobs":[]}})").empty());
  const auto actions = exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs));
  EXPECT_NE(only(actions, Action::Kind::respond).body.find("[[null,1,null],[-0.5,2,null]]"),
            std::string::npos);
}

TEST_F(SglangMergedAnswer, NullAndAbsentListsTakePrefills) {
  for (const std::string own : {R"("input_token_logprobs":null)", R"("id":1)", ""}) {
    start(kSingle);
    exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs));
    const auto reply = only(decode_done(R"({"meta_info":{)" + own + "}}"), Action::Kind::respond);
    const auto meta = nlohmann::json::parse(reply.body).at("meta_info");
    EXPECT_EQ(meta.at("input_token_logprobs").size(), 2U) << own;
  }
}

TEST_F(SglangMergedAnswer, BatchesAreMergedItemByItem) {
  start(R"({"text":["a","b"],"return_logprob":[true,true]})");
  const auto item = [](int token) {
    return R"({"meta_info":{"finish_reason":{"type":"length"},"input_token_logprobs":[[0,)" +
           std::to_string(token) + "]]}}";
  };
  exchange_->deliver(leg_done(prefill_.id, 200, "[" + item(1) + "," + item(2) + "]"));
  const auto reply = only(decode_done("[" + item(3) + ", " + item(4) + "]"), Action::Kind::respond);
  const auto list = nlohmann::json::parse(reply.body);
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0]["meta_info"]["input_token_logprobs"], nlohmann::json::parse("[[0,1],[0,3]]"));
  EXPECT_EQ(list[1]["meta_info"]["input_token_logprobs"], nlohmann::json::parse("[[0,2],[0,4]]"));
}

TEST_F(SglangMergedAnswer, EveryEventOfAStreamIsMerged) {
  start(kStream);
  EXPECT_EQ(decode_.reply, HANDOFF_REPLY_STREAM);
  exchange_->deliver(head(decode_.id));
  const std::string event = "data: {\"text\":\"a\",\"meta_info\":{\"input_token_logprobs\":[]}}\n\n";
  EXPECT_TRUE(exchange_->deliver(piece(decode_.id, event + event.substr(0, 12))).empty());
  auto actions = exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs));
  EXPECT_EQ(only(actions, Action::Kind::respond).headers.front(),
            (Header{"content-type", "text/event-stream"}));
  auto text = written(actions);
  text += written(exchange_->deliver(piece(decode_.id, event.substr(12) + "data: [DONE]\n\n")));
  text += written(exchange_->deliver(leg_done(decode_.id, 200, "")));
  std::size_t merged = 0;
  for (auto at = text.find("[[null,1,null],[-0.5,2,null]]"); at != std::string::npos;
       at = text.find("[[null,1", at + 1))
    ++merged;
  EXPECT_EQ(merged, 2U) << text;
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(exchange_->deliver(ended(HANDOFF_OUTCOME_ANSWERED)).empty());
}

// Before an answer is begun the sidecar takes no more than its bound of a stream: a whole event would never
// come.
TEST_F(SglangMergedAnswer, AFirstEventThatIsTooLongForAFailureBeginsTheAnswer) {
  for (const bool prefill_first : {true, false}) {
    start(kStream);
    const std::string event = "data: {\"text\":\"" + std::string(80000, 'a') + "\",\"meta_info\":{}}\n\n";
    std::vector<Action> actions;
    if (prefill_first) exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs));
    exchange_->deliver(head(decode_.id));
    actions = exchange_->deliver(piece(decode_.id, event.substr(0, 40000)));
    if (!prefill_first) actions = exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs));
    EXPECT_EQ(only(actions, Action::Kind::respond).status, 200U);
    const auto text = written(exchange_->deliver(piece(decode_.id, event.substr(40000))));
    EXPECT_NE(text.find("[[null,1,null],[-0.5,2,null]]"), std::string::npos);
    EXPECT_TRUE(text.ends_with("}\n\n"));
  }
}

TEST_F(SglangMergedAnswer, AnItemOfABatchThatFailedIsAFailure) {
  start(R"({"text":["a","b"],"return_logprob":true})");
  const auto actions =
      decode_done(R"([{"meta_info":{}},{"meta_info":{"finish_reason":{"type":"abort","status_code":503}}}])");
  EXPECT_EQ(only(actions, Action::Kind::fail).status, 503U);
}

TEST_F(SglangMergedAnswer, AnErrorBeforePrefillIsDoneStillHasAStatus) {
  start(kStream);
  exchange_->deliver(head(decode_.id));
  const auto actions = exchange_->deliver(piece(decode_.id, "data: {\"error\":{\"code\":503}}\n\n"));
  EXPECT_EQ(only(actions, Action::Kind::fail).status, 503U);
  EXPECT_EQ(aborted(actions, HANDOFF_TARGET_PREFILL).size(), 1U);
}

// S65: the sidecar gives a streamed leg's pieces only up to its bound, until an answer is begun.
TEST_F(SglangMergedAnswer, APlainReplyToAStreamedRequestIsMergedWhenItIsWhole) {
  const std::string text(200'000, 'x');
  const std::string reply = R"({"text":")" + text + R"(","meta_info":{"input_token_logprobs":[]}})";
  for (const bool prefill_first : {true, false}) {
    start(kStream);
    std::string got;
    const auto take = [&](const std::vector<Action>& actions) { got += written(actions); };
    take(exchange_->deliver(head(decode_.id, 200, "application/json")));
    if (prefill_first) take(exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs)));
    const auto begun = exchange_->deliver(piece(decode_.id, reply.substr(0, 65536)));
    const auto after =
        prefill_first ? begun : exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs));
    EXPECT_EQ(only(after, Action::Kind::respond).status, 200U) << "what is held can't grow before that";
    take(exchange_->deliver(piece(decode_.id, reply.substr(65536))));
    EXPECT_EQ(got, "");
    take(exchange_->deliver(leg_done(decode_.id, 200, "")));
    EXPECT_NE(got.find(R"("input_token_logprobs":[[null,1,null],[-0.5,2,null]])"), std::string::npos);
    EXPECT_NE(got.find(text), std::string::npos);
  }
}

TEST_F(SglangMergedAnswer, ARefusalKeepsWhatItSaysOfItself) {
  start(kStream);
  const auto actions =
      exchange_->deliver(head(decode_.id, 429, "application/json",
                              {{"retry-after", "3"}, {"x-sglang-pd-reason", "PD_CAPACITY_EXHAUSTED"}}));
  const auto headers = only(actions, Action::Kind::respond).headers;
  EXPECT_NE(std::find(headers.begin(), headers.end(), Header{"retry-after", "3"}), headers.end());
  EXPECT_NE(std::find(headers.begin(), headers.end(), Header{"x-sglang-pd-reason", "PD_CAPACITY_EXHAUSTED"}),
            headers.end());
}

TEST_F(SglangMergedAnswer, DecodesRefusalReachesTheClient) {
  start(kStream);
  auto actions = exchange_->deliver(head(decode_.id, 400, "application/json"));
  EXPECT_EQ(only(actions, Action::Kind::respond).status, 400U);
  EXPECT_EQ(written(exchange_->deliver(piece(decode_.id, "{\"error\":1}"))), "{\"error\":1}");
  exchange_->deliver(leg_done(decode_.id, 400, ""));
  EXPECT_TRUE(exchange_->deliver(ended(HANDOFF_OUTCOME_ANSWERED)).empty());
}

TEST_F(SglangMergedAnswer, AStreamThatBreaksIsBroken) {
  start(kStream);
  exchange_->deliver(head(decode_.id));
  exchange_->deliver(piece(decode_.id, "data: {}\n\n"));
  exchange_->deliver(leg_done(prefill_.id, 200, kPrefillLogprobs));
  const auto actions =
      exchange_->deliver(leg_failed(decode_.id, HANDOFF_CAUSE_RESET,
                                    HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED | HANDOFF_CLIENT_STARTED));
  EXPECT_EQ(of_kind(actions, Action::Kind::fail).size(), 1U);
  EXPECT_EQ(aborted(actions, HANDOFF_TARGET_LOCAL).size(), 1U);
}

}  // namespace
}  // namespace handoff::plugin_test
