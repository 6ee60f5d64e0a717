// What is made of a context reply. Case numbers as in backends/trtllm/PROTOCOL.md.
#include <nlohmann/json.hpp>

#include "tests/unit/backends/trtllm/trtllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using Json = nlohmann::ordered_json;

const std::string kAsk = R"({"messages":[]})";

std::string params_with(const std::string& name, const std::string& value) {
  auto params = Json::parse(kContextParams);
  params[name] = "@";
  std::string text = params.dump();
  return text.replace(text.find("\"@\""), 3, value);
}

class Handoff : public TrtllmCase {
 protected:
  std::string defect(std::string reply) {
    const auto action = after_reply(kChat, kAsk, std::move(reply));
    EXPECT_EQ(action.kind, Action::Kind::fail) << action.body;
    EXPECT_EQ(action.status, 502U);
    EXPECT_EQ(action.code, "invalid_prefill_handoff");
    return action.message;
  }
};

// T03: what context is asked
TEST_F(Handoff, ContextGetsTheRequestWithItsLimitsAndStopRules) {
  const auto body =
      context(kChat, R"({"messages": [], "max_tokens": 9, "min_tokens":2,"ignore_eos":true, "stop":["x"],)"
                     R"( "stream": true, "stream_options" : {"include_usage":true}, "seed":1.50e3})")
          .body;
  const auto json = Json::parse(body);
  EXPECT_EQ(json["max_tokens"], 9);
  EXPECT_EQ(json["min_tokens"], 2);
  EXPECT_EQ(json["ignore_eos"], true);
  EXPECT_EQ(json["stop"], Json::array({"x"}));
  EXPECT_EQ(json["stream"], false);
  EXPECT_TRUE(json["stream_options"].is_null());
  EXPECT_EQ(json["disaggregated_params"]["request_type"], "context_only");
  EXPECT_EQ(json["disaggregated_params"].size(), 2U) << "older releases refuse what they do not know";
  EXPECT_NE(body.find(R"("max_tokens": 9, "min_tokens":2,)"), std::string::npos) << "bytes as they were";
  EXPECT_NE(body.find("1.50e3"), std::string::npos);
  EXPECT_EQ(Json::parse(context(kChat, kAsk).body).count("stream_options"), 0U);
}

// T04, T05: the whole object, ids exact, one member changed
TEST_F(Handoff, GenerationGetsTheWholeObjectVerbatim) {
  const auto leg = generation(kChat, R"({"messages":[],"stream":true,"max_tokens":9})", context_reply());
  EXPECT_EQ(leg.body, R"({"messages":[],"stream":true,"max_tokens":9,"prompt_token_ids":[1, 2, 30],)"
                      R"("disaggregated_params":)" +
                          kGenerationParams + "}");
}

// T06
TEST_F(Handoff, CompletionsGetThePromptAsTokens) {
  const auto leg = generation(kCompletions, R"({"prompt":"text","max_tokens":9})", context_reply());
  EXPECT_EQ(leg.body,
            R"({"prompt":[1, 2, 30],"max_tokens":9,"disaggregated_params":)" + kGenerationParams + "}");
  const auto nested = generation(kCompletions, R"({"prompt":["t"]})",
                                 context_reply(kContextParams, "length", R"("prompt_token_ids":[[7,8]])"));
  EXPECT_EQ(Json::parse(nested.body)["prompt"].dump(), "[[7,8]]");
}

// T07
TEST_F(Handoff, Base64TokensArePassedOnOrDecoded) {
  // 1, 2, 30, 128000 as 32-bit little-endian integers
  const std::string base64 = R"("AQAAAAIAAAAeAAAAAPQBAA==")";
  const auto reply = context_reply(kContextParams, "not_finished",
                                   R"("prompt_token_ids":null,"prompt_token_ids_b64":)" + base64);
  const auto chat = generation(kChat, R"({"messages":[],"prompt_token_ids":[5]})", reply).body;
  EXPECT_EQ(Json::parse(chat)["prompt_token_ids_b64"].dump(), base64);
  EXPECT_EQ(Json::parse(chat).count("prompt_token_ids"), 0U) << "two forms would contradict each other";
  EXPECT_EQ(Json::parse(generation(kCompletions, R"({"prompt":"t"})", reply).body)["prompt"].dump(),
            "[1,2,30,128000]");
  for (const std::string bad : {R"("AQAAAA")", R"("AQAA")", R"("AQ\u0041AAA==")", R"("////////////////")"}) {
    const auto action =
        after_reply(kCompletions, R"({"prompt":"t"})",
                    context_reply(kContextParams, "length", R"("prompt_token_ids_b64":)" + bad));
    EXPECT_EQ(action.code, "invalid_prefill_handoff") << bad;
  }
}

// T08: releases that know `ctx_usage` report the prompt by it
TEST_F(Handoff, UsageIsFilledInWhereTheReleaseHasAPlaceForIt) {
  const auto leg = generation(kChat, kAsk, context_reply(params_with("ctx_usage", "null")));
  const auto params = Json::parse(leg.body)["disaggregated_params"];
  EXPECT_EQ(params["ctx_usage"]["prompt_tokens"], 3);
  EXPECT_EQ(
      Json::parse(generation(kChat, kAsk, context_reply()).body)["disaggregated_params"].count("ctx_usage"),
      0U);
}

// T09: the gate
TEST_F(Handoff, OnlyAnUnfinishedRequestGoesOn) {
  for (const std::string finish : {"length", "not_finished"}) {
    EXPECT_EQ(after_reply(kChat, kAsk, context_reply(kContextParams, finish)).kind, Action::Kind::start)
        << finish;
  }
  for (const std::string finish :
       {"stop", "tool_calls", "content_filter", "cancelled", "timeout", "Length", ""}) {
    EXPECT_EQ(after_reply(kChat, kAsk, context_reply(kContextParams, finish)).kind, Action::Kind::respond)
        << finish;
  }
  EXPECT_EQ(host_.counts["finished_in_context"], 7);
}

// T10, T11: defects, field by field
TEST_F(Handoff, DefectsNameTheField) {
  for (const std::string name : {"ctx_request_id", "disagg_request_id"}) {
    for (const std::string bad :
         {"null", "\"5\"", "1.0", "9.007199254740993e15", "-1", "true", "[1]", "01", "18446744073709551616",
          "1606938044258990275541962092341162602522202993782792835301376"}) {
      std::string reply = context_reply(params_with(name, bad));
      if (bad == "01") continue;  // not JSON: judged as a whole
      EXPECT_NE(defect(reply).find(name), std::string::npos) << name << "=" << bad;
    }
  }
  for (const std::string good : {"0", "18446744073709551615"}) {
    const auto reply = context_reply(params_with("ctx_request_id", good));
    EXPECT_EQ(after_reply(kChat, kAsk, reply).kind, Action::Kind::start) << good;
  }
  for (const std::string bad : {"null", "\"generation_only\"", "\"context_and_generation\"", "7"}) {
    EXPECT_NE(defect(context_reply(params_with("request_type", bad))).find("request_type"), std::string::npos)
        << bad;
  }
  for (const std::string bad : {"[]", "7", "\"x\"", "true"}) {
    EXPECT_NE(defect(context_reply(bad)).find("disaggregated_params"), std::string::npos) << bad;
  }
  const auto with_ids = [&](const std::string& ids) {
    return defect(context_reply(kContextParams, "length", ids));
  };
  EXPECT_NE(with_ids(R"("prompt_token_ids":null)").find("no prompt_token_ids"), std::string::npos);
  EXPECT_NE(with_ids(R"("prompt_token_ids":[1],"prompt_token_ids_b64":"AQAAAA==")").find("both"),
            std::string::npos);
  EXPECT_NE(with_ids(R"("prompt_token_ids_b64":[1])").find("not a string"), std::string::npos);
  for (const std::string bad : {"[1.0]", "[-1]", "[\"1\"]", "[[1]]", "[1,null]", "{}", "\"AQ\"", "7"}) {
    EXPECT_NE(with_ids(R"("prompt_token_ids":)" + bad).find("list of integers"), std::string::npos) << bad;
  }
  EXPECT_NE(with_ids(R"("prompt_token_ids":[ ])").find("empty"), std::string::npos);
  for (const std::string bad : {"\"\"", "\"###\"", "\"####\"", "\"AQAA\"", "\"AQAAA===\"", "\"AQ=AAA==\""}) {
    EXPECT_NE(with_ids(R"("prompt_token_ids_b64":)" + bad).find("base64"), std::string::npos) << bad;
  }
}

// T12: replies that are none
TEST_F(Handoff, RepliesOfAnotherShapeAreRefused) {
  for (const std::string reply :
       {"", "null", "[]", "{", "data: {}\n\ndata: [DONE]\n\n", R"({"choices":null})", R"({"choices":[]})",
        R"({"choices":[1]})", R"({"choices":[{"finish_reason":"stop"},{"finish_reason":"stop"}]})",
        R"({"choices":[{"text":"x"}]})", R"({"choices":[{"finish_reason":null}]})",
        R"({"choices":[{"finish_reason":"stop"}],"error":{"code":500}})",
        // another engine's handoff
        R"({"choices":[],"kv_transfer_params":{"do_remote_prefill":true}})"}) {
    defect(reply);
  }
  EXPECT_EQ(host_.counts["invalid_handoff"], 13);
}

// T13: an opaque state of megabytes
TEST_F(Handoff, LargeStatesPass) {
  const std::string state = "\"" + std::string(4 << 20, 'A') + "\"";
  const auto leg = generation(kChat, kAsk, context_reply(params_with("encoded_opaque_state", state)));
  EXPECT_NE(leg.body.find(state), std::string::npos);
}

}  // namespace
}  // namespace handoff::plugin_test
