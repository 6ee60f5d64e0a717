// Requests that end in the context phase (T14 to T17 of backends/trtllm/PROTOCOL.md).
#include <nlohmann/json.hpp>

#include "tests/unit/backends/trtllm/trtllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// The JSON of each event; the last must be [DONE].
std::vector<OrderedJson> events_of(const std::string& body) {
  std::vector<OrderedJson> events;
  std::size_t at = 0;
  bool done = false;
  while (at < body.size()) {
    const auto end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    if (end == std::string::npos) break;
    const auto line = body.substr(at, end - at);
    EXPECT_EQ(line.substr(0, 6), "data: ");
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_FALSE(done) << "an event after [DONE]";
    done = line == "data: [DONE]";
    if (!done) events.push_back(OrderedJson::parse(line.substr(6)));
    at = end + 2;
  }
  EXPECT_TRUE(done);
  return events;
}

class FinishedInContext : public TrtllmCase {
 protected:
  std::vector<OrderedJson> streamed(std::string_view path, std::string body, std::string reply) {
    const auto action = after_reply(path, std::move(body), std::move(reply));
    EXPECT_EQ(action.kind, Action::Kind::respond);
    EXPECT_EQ(action.status, 200U);
    EXPECT_EQ(action.headers, (std::vector<Header>{{"content-type", "text/event-stream; charset=utf-8"}}));
    return events_of(action.body);
  }
};

// T14
TEST_F(FinishedInContext, TheReplyIsTheAnswerWithoutTheHandoff) {
  const auto action = after_reply(kChat, R"({"messages":[]})", context_reply(kContextParams, "stop"));
  EXPECT_EQ(action.kind, Action::Kind::respond);
  EXPECT_EQ(action.status, 200U);
  EXPECT_EQ(action.headers, (std::vector<Header>{{"content-type", "application/json"}}));
  EXPECT_EQ(
      action.body,
      R"({"id": "chatcmpl-1", "object": "chat.completion", "created": 17, "model": "m", )"
      R"("choices": [ {"index": 0, "message": {"role": "assistant", "content": " One"}, "finish_reason": "stop", )"
      R"("stop_reason": null} ], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}})");
  // Parameters without ids, as engines send them then, are as good as none.
  const auto bare =
      after_reply(kChat, R"({"stream":false})",
                  context_reply(R"({"request_type":"context_only","ctx_request_id":null})", "stop",
                                R"("prompt_token_ids":null,"prompt_token_ids_b64":null)"));
  EXPECT_EQ(bare.body, action.body);
}

// T15
TEST_F(FinishedInContext, AStreamIsAProperStream) {
  const auto events = streamed(kChat, R"({"stream":true})", context_reply(kContextParams, "stop"));
  ASSERT_EQ(events.size(), 2U);
  for (const auto& event : events) {
    EXPECT_EQ(event["id"], "chatcmpl-1");
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["created"], 17);
    EXPECT_EQ(event["model"], "m");
    EXPECT_EQ(event.count("usage"), 0U);
  }
  const OrderedJson one = OrderedJson::parse(R"({"role":"assistant","content":" One"})");
  EXPECT_EQ(events[0]["choices"][0]["delta"], one);
  EXPECT_TRUE(events[0]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(events[1]["choices"][0]["delta"], OrderedJson::object());
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], "stop");

  // A lenient spelling of true is true to the engine.
  EXPECT_EQ(streamed(kChat, R"({"stream":1})", context_reply(kContextParams, "stop")).size(), 2U);
}

// T16
TEST_F(FinishedInContext, UsageComesWhereTheClientAskedForIt) {
  const auto events = streamed(kChat, R"({"stream":true,"stream_options":{"include_usage":true}})",
                               context_reply(kContextParams, "stop"));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[2]["choices"], OrderedJson::array());
  EXPECT_EQ(events[2]["usage"]["total_tokens"], 4);
  EXPECT_EQ(events[0].count("usage"), 0U);
  const auto each = streamed(
      kChat, R"({"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})",
      context_reply(kContextParams, "stop"));
  EXPECT_EQ(each.at(0)["usage"]["total_tokens"], 4);
  EXPECT_EQ(streamed(kChat, R"({"stream":true,"stream_options":{"include_usage":false}})",
                     context_reply(kContextParams, "stop"))
                .size(),
            2U);
}

// T17
TEST_F(FinishedInContext, TextToolCallsAndLogprobsArrive) {
  const auto completion = streamed(
      kCompletions, R"({"prompt":"p","stream":true})",
      R"({"id":"cmpl-1","created":1,"model":"m","choices":[{"index":0,"text":"a\nb","logprobs":{"tokens":["a"]},)"
      R"("finish_reason":"stop","stop_reason":7,"disaggregated_params":null}]})");
  ASSERT_EQ(completion.size(), 2U);
  EXPECT_EQ(completion[0]["object"], "text_completion");
  EXPECT_EQ(completion[0]["choices"][0]["text"], "a\nb");
  EXPECT_EQ(completion[0]["choices"][0]["logprobs"]["tokens"][0], "a");
  EXPECT_EQ(completion[1]["choices"][0]["text"], "");
  EXPECT_EQ(completion[1]["choices"][0]["stop_reason"], 7);

  // A pretty-printed reply has line ends between its tokens, which would end an event.
  const auto call =
      streamed(kChat, R"({"stream":true})",
               "{\"id\":\"c\",\n\"choices\":[\n{\"message\":{\"role\":\"assistant\",\"content\":null,\n"
               "\"tool_calls\":[{\"id\":\"t\",\n\"type\":\"function\",\"function\":{\"name\":\"f\",\n"
               "\"arguments\":\"{}\"}},{\"id\":\"u\",\"function\":{\"name\":\"g, "
               "[\"}}]},\"finish_reason\":\"tool_calls\"}]}");
  ASSERT_EQ(call.size(), 2U);
  const auto delta = call[0]["choices"][0]["delta"];
  EXPECT_EQ(delta["tool_calls"][0]["index"], 0);
  EXPECT_EQ(delta["tool_calls"][0]["function"]["name"], "f");
  ASSERT_EQ(delta["tool_calls"].size(), 2U);
  EXPECT_EQ(delta["tool_calls"][1]["index"], 1);
  EXPECT_EQ(delta["tool_calls"][1]["function"]["name"], "g, [");
  EXPECT_EQ(call[1]["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(FinishedInContext, ReplyWithoutMembersIsStillAStream) {
  const auto events = streamed(kChat, R"({"stream":true})", R"({"choices":[{"finish_reason":"stop"}]})");
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["choices"][0]["delta"], OrderedJson::object());
}

}  // namespace
}  // namespace handoff::plugin_test
