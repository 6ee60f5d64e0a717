// Bodies of the legs, byte by byte. Case numbers as in backends/vllm/PROTOCOL.md.
#include <nlohmann/json.hpp>

#include "tests/unit/backends/vllm/vllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using Json = nlohmann::ordered_json;

class VllmLegBody : public VllmCase {};

struct EditRow {
  std::string_view why;
  std::string_view path;
  std::string sent;
  std::string prefill;
  std::string decode;
};

std::vector<EditRow> edit_rows() {
  const std::string ask = R"("kv_transfer_params":)" + kAsk;
  const std::string have = R"("kv_transfer_params":)" + kHandoff;
  const std::string ask_extra = R"("extra_args":{)" + ask + "}";
  const std::string have_extra = R"("extra_args":{)" + have + "}";
  return {
      // C04: max_tokens is always there for prefill, max_completion_tokens only where it was sent.
      {"C04 neither limit", kChat, R"({"messages":[]})",
       R"({"messages":[],"stream":false,"max_tokens":1,)" + ask + "}", R"({"messages":[],)" + have + "}"},
      {"C04 max_tokens", kChat, R"({"max_tokens":64})", R"({"max_tokens":1,"stream":false,)" + ask + "}",
       R"({"max_tokens":64,)" + have + "}"},
      {"C04 max_completion_tokens", kChat, R"({"max_completion_tokens":64})",
       R"({"max_completion_tokens":1,"stream":false,"max_tokens":1,)" + ask + "}",
       R"({"max_completion_tokens":64,)" + have + "}"},
      {"C04 both", kChat, R"({"max_tokens":5,"max_completion_tokens":6})",
       R"({"max_tokens":1,"max_completion_tokens":1,"stream":false,)" + ask + "}",
       R"({"max_tokens":5,"max_completion_tokens":6,)" + have + "}"},
      // C05
      {"C05 stream and minimum", kChat,
       R"({"stream": true, "stream_options": {"include_usage": true}, "min_tokens": 4, "model": "m"})",
       R"({"stream": false, "model": "m","max_tokens":1,)" + ask + "}",
       R"({"stream": true, "stream_options": {"include_usage": true}, "min_tokens": 4, "model": "m",)" +
           have + "}"},
      {"C05 min_completion_tokens last", kCompletions, R"({"prompt":"p","min_completion_tokens":2})",
       R"({"prompt":"p","stream":false,"max_tokens":1,)" + ask + "}",
       R"({"prompt":"p","min_completion_tokens":2,)" + have + "}"},
      // C06
      {"C06 unknown fields", kChat,
       R"({"tools":[{"a":1}],"response_format":{"type":"json_object"},"nvext":{"x":[1.50]},"logprobs":true})",
       R"({"tools":[{"a":1}],"response_format":{"type":"json_object"},"nvext":{"x":[1.50]},"logprobs":true,)"
       R"("stream":false,"max_tokens":1,)" +
           ask + "}",
       R"({"tools":[{"a":1}],"response_format":{"type":"json_object"},"nvext":{"x":[1.50]},"logprobs":true,)" +
           have + "}"},
      // C08
      {"C08 null and {} are replaced in place", kCompletions, R"({"kv_transfer_params":null,"prompt":"p"})",
       R"({"kv_transfer_params":)" + kAsk + R"(,"prompt":"p","stream":false,"max_tokens":1})",
       R"({"kv_transfer_params":)" + kHandoff + R"(,"prompt":"p"})"},
      {"C08 {}", kCompletions, R"({"kv_transfer_params": { } ,"prompt":"p"})",
       R"({"kv_transfer_params": )" + kAsk + R"( ,"prompt":"p","stream":false,"max_tokens":1})",
       R"({"kv_transfer_params": )" + kHandoff + R"( ,"prompt":"p"})"},
      // C31: each schema has its own limit.
      {"C31 responses", kResponses, R"({"input":"i","max_output_tokens":32,"stream":true})",
       R"({"input":"i","max_output_tokens":1,"stream":false,"store":false,)" + ask + "}",
       R"({"input":"i","max_output_tokens":32,"stream":true,)" + have + "}"},
      {"C31 responses without limit, C37 stored", kResponses, R"({"input":"i","store":true})",
       R"({"input":"i","store":false,"stream":false,"max_output_tokens":1,)" + ask + "}",
       R"({"input":"i","store":true,)" + have + "}"},
      {"C31 messages", kMessages, R"({"max_tokens":32,"messages":[]})",
       R"({"max_tokens":1,"messages":[],"stream":false,)" + ask + "}",
       R"({"max_tokens":32,"messages":[],)" + have + "}"},
      {"C31 messages: a missing required limit stays missing", kMessages, R"({"messages":[]})",
       R"({"messages":[],"stream":false,)" + ask + "}", R"({"messages":[],)" + have + "}"},
      {"C31 messages: null likewise", kMessages, R"({"max_tokens":null})",
       R"({"max_tokens":null,"stream":false,)" + ask + "}", R"({"max_tokens":null,)" + have + "}"},
      // C32: parameters at the top, and beside existing sampling parameters.
      {"C32 generate", kGenerate, R"({"token_ids":[1],"sampling_params":{"max_tokens":9,"min_tokens":3}})",
       R"({"token_ids":[1],"sampling_params":{"max_tokens":1,)" + ask_extra + R"(},"stream":false,)" + ask +
           "}",
       R"({"token_ids":[1],"sampling_params":{"max_tokens":9,"min_tokens":3,)" + have_extra + "}," + have +
           "}"},
      {"C32 generate with extra_args", kGenerate,
       R"({"sampling_params": {"extra_args": {"a": 1e3}, "temperature": 0}, "token_ids":[1]})",
       R"({"sampling_params": {"extra_args": {"a": 1e3,)" + ask +
           R"(}, "temperature": 0,"max_tokens":1}, )"
           R"("token_ids":[1],"stream":false,)" +
           ask + "}",
       R"({"sampling_params": {"extra_args": {"a": 1e3,)" + have +
           R"(}, "temperature": 0}, "token_ids":[1],)" + have + "}"},
      {"C32 generate with empty sampling parameters", kGenerate, R"({"sampling_params":{ }})",
       R"({"sampling_params":{"max_tokens":1,)" + ask_extra + R"( },"stream":false,)" + ask + "}",
       R"({"sampling_params":{)" + have_extra + " }," + have + "}"},
      {"C32 generate with null extra_args", kGenerate, R"({"sampling_params":{"extra_args":null}})",
       R"({"sampling_params":{"extra_args":{)" + ask + R"(},"max_tokens":1},"stream":false,)" + ask + "}",
       R"({"sampling_params":{"extra_args":{)" + have + "}}," + have + "}"},
      {"C32 generate without sampling parameters: the engine refuses it", kGenerate, R"({"token_ids":[1]})",
       R"({"token_ids":[1],"stream":false,)" + ask + "}", R"({"token_ids":[1],)" + have + "}"},
      {"C32 generate with sampling parameters that are none", kGenerate, R"({"sampling_params":[]})",
       R"({"sampling_params":[],"stream":false,)" + ask + "}", R"({"sampling_params":[],)" + have + "}"},
      // C48: what a parse and a rewrite would lose.
      {"C48 numbers, order, escapes", kChat,
       R"({"z":1e400,"seed":9223372036854775807,"t":1.0,"a":"\u00e9\/<>&","big":18446744073709551616})",
       R"({"z":1e400,"seed":9223372036854775807,"t":1.0,"a":"\u00e9\/<>&","big":18446744073709551616,)"
       R"("stream":false,"max_tokens":1,)" +
           ask + "}",
       R"({"z":1e400,"seed":9223372036854775807,"t":1.0,"a":"\u00e9\/<>&","big":18446744073709551616,)" +
           have + "}"},
      {"C48 repeated names are all set", kChat,
       R"({"stream":true,"max_tokens":3,"stream":true,"max_tokens":4})",
       R"({"stream":false,"max_tokens":1,"stream":false,"max_tokens":1,)" + ask + "}",
       R"({"stream":true,"max_tokens":3,"stream":true,"max_tokens":4,)" + have + "}"},
      {"C48 escaped names", kChat, R"({"max\u005ftokens":3,"\u0073tream":true,"\u0073tream_options":{}})",
       R"({"max\u005ftokens":1,"\u0073tream":false,)" + ask + "}",
       R"({"max\u005ftokens":3,"\u0073tream":true,"\u0073tream_options":{},)" + have + "}"},
      {"C48 white space", kChat, "\n{ }\t", "\n{\"stream\":false,\"max_tokens\":1," + ask + " }\t",
       "\n{" + have + " }\t"},
  };
}

TEST_F(VllmLegBody, IsTheClientsWithTheIntendedEditsOnly) {
  for (const auto& row : edit_rows()) {
    EXPECT_EQ(prefill(row.path, row.sent).body, row.prefill) << row.why;
    EXPECT_EQ(decode(row.path, row.sent, reply_with(kHandoff)).body, row.decode) << row.why;
  }
}

// The same rows read by another parser: what is meant arrives.
TEST_F(VllmLegBody, MeansWhatIsIntended) {
  for (const auto& row : edit_rows()) {
    if (row.sent.find("1e400") != std::string::npos) continue;  // beyond the other parser
    const auto sent = Json::parse(row.sent);
    const auto to_prefill = Json::parse(prefill(row.path, row.sent).body);
    const auto to_decode = Json::parse(decode(row.path, row.sent, reply_with(kHandoff)).body);
    EXPECT_EQ(to_prefill["kv_transfer_params"], Json::parse(kAsk)) << row.why;
    EXPECT_EQ(to_decode["kv_transfer_params"], Json::parse(kHandoff)) << row.why;
    EXPECT_EQ(to_prefill["stream"], false) << row.why;
    EXPECT_EQ(to_prefill.count("stream_options") + to_prefill.count("min_tokens"), 0U) << row.why;
    auto without = to_decode;
    without.erase("kv_transfer_params");
    auto original = sent;
    original.erase("kv_transfer_params");
    if (row.path != kGenerate) {
      EXPECT_EQ(without, original) << row.why;
    }
  }
}

// C03, C13, C14, C15: every byte of the handoff goes to decode, and nowhere else.
TEST_F(VllmLegBody, CarriesTheHandoffVerbatim) {
  const std::string odd =
      R"({ "unknown" : [1.0, 1e2, -0, {"a":"\u0041"}], "do_remote_prefill":true,"do_remote_decode":false,)"
      R"("remote_block_ids":[ [18446744073709551616] ],"remote_engine_id":"e","remote_request_id":"r",)"
      R"("remote_host":"169.254.169.254","remote_port":5600,"pp_size":1,"remote_blocks_expiry_time":12.50 })";
  const auto leg = decode(kChat, R"({"messages":[]})", reply_with(odd), {{"x-request-id", "client-1"}});
  EXPECT_EQ(leg.body, R"({"messages":[],"kv_transfer_params":)" + odd + "}");
  EXPECT_EQ(leg.target, HANDOFF_TARGET_LOCAL);
  EXPECT_EQ(leg.port, 0U);
  EXPECT_EQ(leg.path, "");
  EXPECT_EQ(leg.header("x-request-id"), std::nullopt);
}

// C51: tens of thousands of blocks, as from a prompt of a million tokens.
TEST_F(VllmLegBody, CarriesAHandoffOfManyBlocks) {
  std::string ids = "[[0";
  for (int i = 1; i < 200'000; ++i) ids += "," + std::to_string(i);
  ids += "]]";
  const auto params = R"({"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":)" + ids +
                      R"(,"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1})";
  const auto leg = decode(kGenerate, R"({"sampling_params":{}})", reply_with(params));
  EXPECT_EQ(leg.body, R"({"sampling_params":{"extra_args":{"kv_transfer_params":)" + params +
                          R"(}},"kv_transfer_params":)" + params + "}");
}

}  // namespace
}  // namespace handoff::plugin_test
