// Which requests run on the decode engine alone. Case numbers as in backends/vllm/PROTOCOL.md.
#include <ostream>

#include "tests/unit/backends/vllm/vllm_case.hpp"

namespace handoff::plugin_test {
namespace {

class VllmRequestShape : public VllmCase {};

struct ShapeRow {
  std::string_view path;
  std::string body;
  std::string_view reason;  ///< empty: disaggregated
};
void PrintTo(const ShapeRow& row, std::ostream* out) {
  *out << row.path << ' ' << row.body;
}

class VllmRequestShapeRows : public VllmRequestShape, public ::testing::WithParamInterface<ShapeRow> {};

TEST_P(VllmRequestShapeRows, IsJudged) {
  EXPECT_EQ(decode_only_reason(GetParam().path, GetParam().body), GetParam().reason) << GetParam().body;
}

// C07, C33, C34: what is one, or off, goes through P/D however it is spelled; the rest does not.
INSTANTIATE_TEST_SUITE_P(
    Sampling, VllmRequestShapeRows,
    ::testing::Values(
        ShapeRow{kChat, R"({"n":1})", ""}, ShapeRow{kChat, R"({"n":1.0})", ""},
        ShapeRow{kChat, R"({"n":10e-1})", ""}, ShapeRow{kChat, R"({"n":"1"})", ""},
        ShapeRow{kChat, R"({"n":null})", ""}, ShapeRow{kCompletions, R"({"n":null})", ""},
        ShapeRow{kChat, R"({"n":3})", "n"}, ShapeRow{kChat, R"({"n":2.0})", "n"},
        ShapeRow{kChat, R"({"n":"2"})", "n"}, ShapeRow{kChat, R"({"n":0})", "n"},
        ShapeRow{kChat, R"({"n":-1})", "n"}, ShapeRow{kChat, R"({"n":1e999})", "n"},
        ShapeRow{kChat, R"({"n":NaN})", "n"}, ShapeRow{kChat, R"({"n":true})", "n"},
        ShapeRow{kChat, R"({"n":[1]})", "n"}, ShapeRow{kChat, R"({"n":1.5})", "n"},
        ShapeRow{kChat, R"({"n":3,"n":1})", "n"}, ShapeRow{kChat, R"({"n":1,"n":3})", "n"},
        ShapeRow{kChat, R"({"\u006e":3})", "n"}, ShapeRow{kCompletions, R"({"n":3})", "n"},
        ShapeRow{kCompletions, R"({"best_of":1})", ""}, ShapeRow{kCompletions, R"({"best_of":2})", "best_of"},
        ShapeRow{kChat, R"({"use_beam_search":false})", ""},
        ShapeRow{kChat, R"({"use_beam_search":true})", "use_beam_search"},
        ShapeRow{kChat, R"({"use_beam_search":1})", "use_beam_search"},
        ShapeRow{kChat, R"({"prompt_logprobs":null})", ""},
        ShapeRow{kChat, R"({"prompt_logprobs":0})", "prompt_logprobs"},
        ShapeRow{kCompletions, R"({"prompt_logprobs":5})", "prompt_logprobs"},
        ShapeRow{kCompletions, R"({"echo":false})", ""}, ShapeRow{kCompletions, R"({"echo":true})", "echo"},
        ShapeRow{kGenerate, R"({"sampling_params":{"n":1}})", ""},
        ShapeRow{kGenerate, R"({"sampling_params":{"n":2}})", "n"},
        ShapeRow{kGenerate, R"({"n":2,"sampling_params":{}})", ""},
        ShapeRow{kGenerate, R"({"sampling_params":{"prompt_logprobs":1}})", "prompt_logprobs"},
        ShapeRow{kGenerate, R"({"sampling_params":{"prompt_logprob_token_ids":[1]}})", "prompt_logprobs"},
        ShapeRow{kResponses, R"({"input":"i","n":2})", ""}, ShapeRow{kMessages, R"({"n":2})", ""}));

// C35
INSTANTIATE_TEST_SUITE_P(
    Prompts, VllmRequestShapeRows,
    ::testing::Values(ShapeRow{kCompletions, R"({"prompt":"a, b"})", ""},
                      ShapeRow{kCompletions, R"({"prompt":["a, \"b\\"]})", ""},
                      ShapeRow{kCompletions, R"({"prompt":[1,2,3]})", ""},
                      ShapeRow{kCompletions, R"({"prompt": [ [1,2] ] })", ""},
                      ShapeRow{kCompletions, R"({"prompt":[]})", ""},
                      ShapeRow{kCompletions, R"({"prompt":null})", ""},
                      ShapeRow{kCompletions, R"({"prompt":["a","b"]})", "several_prompts"},
                      ShapeRow{kCompletions, R"({"prompt":["\\" , "b"]})", "several_prompts"},
                      ShapeRow{kCompletions, R"({"prompt":[[1,2],[3]]})", "several_prompts"},
                      ShapeRow{kCompletions, R"({"prompt":"a","prompt":["a","b"]})", "several_prompts"},
                      ShapeRow{kCompletions, R"({"prompt_embeds":"aa"})", ""},
                      ShapeRow{kCompletions, R"({"prompt":"a","prompt_embeds":"aa"})", "several_prompts"},
                      ShapeRow{kCompletions, R"({"prompt_embeds":["aa","bb"]})", "several_prompts"},
                      ShapeRow{kChat, R"({"prompt":["a","b"]})", ""}));

// C36: a prompt that is cut to what the token limit leaves would be cut differently for prefill.
INSTANTIATE_TEST_SUITE_P(Truncation, VllmRequestShapeRows,
                         ::testing::Values(ShapeRow{kChat, R"({"truncate_prompt_tokens":100})", ""},
                                           ShapeRow{kChat, R"({"truncate_prompt_tokens":-1})", "truncation"},
                                           ShapeRow{kCompletions, R"({"truncate_prompt_tokens":"-1"})",
                                                    "truncation"},
                                           ShapeRow{kResponses, R"({"truncation":"disabled"})", ""},
                                           ShapeRow{kResponses, R"({"truncation":"auto"})", "truncation"}));

// C91: prefill gets neither member, so it would accept what decode refuses.
INSTANTIATE_TEST_SUITE_P(
    Streams, VllmRequestShapeRows,
    ::testing::Values(ShapeRow{kChat, R"({"stream":true,"stream_options":{"include_usage":true}})", ""},
                      ShapeRow{kChat, R"({"stream":true,"stream_options":{"unheard_of":7}})", ""},
                      ShapeRow{kChat, R"({"stream":null,"stream_options":null})", ""},
                      ShapeRow{kChat, R"({"stream":"xyz"})", "stream"},
                      ShapeRow{kMessages, R"({"stream":7})", "stream"},
                      ShapeRow{kChat, R"({"stream_options":{"include_usage":true}})", "stream_options"},
                      ShapeRow{kCompletions, R"({"stream":true,"stream_options":7})", "stream_options"},
                      ShapeRow{kGenerate, R"({"stream":true,"stream_options":{"include_usage":"x"}})",
                               "stream_options"}));

// C37
INSTANTIATE_TEST_SUITE_P(
    Responses, VllmRequestShapeRows,
    ::testing::Values(ShapeRow{kResponses, R"({"background":false,"previous_response_id":null})", ""},
                      ShapeRow{kResponses, R"({"background":true})", "background"},
                      ShapeRow{kResponses, R"({"previous_response_id":"resp_1"})", "previous_response_id"}));

// C47: reaches the plugin only where the operator trusts the clients.
INSTANTIATE_TEST_SUITE_P(
    ClientHandoff, VllmRequestShapeRows,
    ::testing::Values(
        ShapeRow{kChat, R"({"kv_transfer_params":{"do_remote_prefill":true}})", "client_handoff"},
        ShapeRow{kChat, R"({"kv_transfer_params":{"a":1},"kv_transfer_params":null})", "client_handoff"},
        ShapeRow{kGenerate, R"({"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}})",
                 "client_handoff"},
        ShapeRow{kGenerate, R"({"sampling_params":{"extra_args":{"kv_transfer_params":{}}}})", ""}));

// C46
TEST_F(VllmRequestShape, RefusesABodyThatIsNoObject) {
  for (const std::string body : {"", "[]", "null", "\"a\"", "{\"a\":", "{} {}", "hello"}) {
    const auto action = only(begin(kChat, body)->begin_actions());
    EXPECT_EQ(action.kind, Action::Kind::fail) << body;
    EXPECT_EQ(action.status, 400U);
    EXPECT_EQ(action.code, "invalid_pd_request");
  }
}

}  // namespace
}  // namespace handoff::plugin_test
