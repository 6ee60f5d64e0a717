// T18, T19 of backends/trtllm/PROTOCOL.md. The expected values are Python's: hmac.new(key, json.dumps({...},
// sort_keys=True, separators=(",", ":")).encode(), hashlib.sha256).hexdigest().
#include "backends/trtllm/handoff_signature.hpp"

#include <nlohmann/json.hpp>

#include "tests/unit/backends/trtllm/trtllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using trtllm::canonical_payload;
using trtllm::ProtectedFields;
using trtllm::signature_of;

TEST(HandoffSignature, PayloadIsWrittenAsPythonWouldWriteIt) {
  const auto payload = [](std::string_view state, std::string_view endpoint) {
    return canonical_payload({.encoded_opaque_state = state, .ctx_info_endpoint = endpoint}).value_or("none");
  };
  EXPECT_EQ(payload("\"QUJD+/8=\"", ""), R"({"ctx_info_endpoint":null,"encoded_opaque_state":"QUJD+/8="})");
  EXPECT_EQ(payload("null", "\"a:1\""), R"({"ctx_info_endpoint":"a:1","encoded_opaque_state":null})");
  EXPECT_EQ(payload("", R"(["a:1", "b:2"])"), R"({"ctx_info_endpoint":"a:1","encoded_opaque_state":null})");
  EXPECT_EQ(payload("", "[]"), R"({"ctx_info_endpoint":null,"encoded_opaque_state":null})");
  // Escapes are resolved and written anew: a slash is none in Python's spelling.
  EXPECT_EQ(payload(R"("QUJD+\/8\u003d")", ""),
            R"({"ctx_info_endpoint":null,"encoded_opaque_state":"QUJD+/8="})");
  EXPECT_EQ(payload("", "\"\xc3\xa9\x7f\xf0\x9f\x98\x80\\\"\\\\\\n\""),
            R"({"ctx_info_endpoint":"\u00e9\u007f\ud83d\ude00\"\\\n","encoded_opaque_state":null})");
  for (const std::string_view bad : {"7", "true", "{}", "[7]", "[[\"a\"]]", "\"\\x\"", "\"\xff\""}) {
    EXPECT_EQ(payload("", bad), "none") << bad;
  }
  EXPECT_EQ(payload("[\"a\"]", ""), "none") << "only endpoints come in lists";
}

TEST(HandoffSignature, DigestsAgreeWithPython) {
  EXPECT_EQ(signature_of("key", R"({"ctx_info_endpoint":null,"encoded_opaque_state":"QUJD+/8="})"),
            "sha256=525c3ab40b50e9df27fa4d8f45731a077d90717bca89daeda4f678c231ebc048");
  EXPECT_EQ(signature_of("s3cret key",
                         R"({"ctx_info_endpoint":"tcp://10.0.0.1:5000","encoded_opaque_state":"AA=="})"),
            "sha256=e3bfc998bc3791a28c263101e0231a96adc583ffe18a9f67a20c6d4588233c52");
  EXPECT_EQ(signature_of(
                "k", R"({"ctx_info_endpoint":"\u00e9\u007f\ud83d\ude00\"\\\n","encoded_opaque_state":null})"),
            "sha256=0c755858b663a28502b104563b124a9b34e35054cbaf5b578ee64063f1e568cd");
}

TEST(HandoffSignature, OnlyProtectedValuesNeedOne) {
  EXPECT_FALSE((ProtectedFields{}).any());
  EXPECT_FALSE((ProtectedFields{.encoded_opaque_state = "null", .ctx_info_endpoint = "null"}).any());
  EXPECT_TRUE((ProtectedFields{.encoded_opaque_state = "\"\""}).any());
  EXPECT_TRUE((ProtectedFields{.ctx_info_endpoint = "[]"}).any());
}

class SignedHandoff : public TrtllmCase {
 protected:
  SignedHandoff() : TrtllmCase({{"DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE", "key\r\n"}}) {}
};

TEST_F(SignedHandoff, GenerationGetsTheSignatureAndContextNone) {
  const auto exchange = begin(kChat, R"({"messages":[]})", {{"x-trtllm-disagg-auth", "sha256=forged"}});
  EXPECT_EQ(only(exchange->begin_actions()).leg.header("x-trtllm-disagg-auth"), "");
  const auto leg = only(exchange->deliver(leg_done(1, 200, context_reply()))).leg;
  EXPECT_EQ(leg.header("x-trtllm-disagg-auth"),
            "sha256=525c3ab40b50e9df27fa4d8f45731a077d90717bca89daeda4f678c231ebc048");
}

TEST_F(SignedHandoff, NothingToSignNeedsNoSignature) {
  std::string params = kContextParams;
  params.replace(params.find("\"QUJD+/8=\""), 10, "null");
  EXPECT_EQ(generation(kChat, R"({"messages":[]})", context_reply(params)).header("x-trtllm-disagg-auth"),
            "");
}

TEST_F(SignedHandoff, WhatCantBeSignedIsRefused) {
  std::string params = kContextParams;
  params.replace(params.find("\"QUJD+/8=\""), 10, "[1]");
  const auto action = after_reply(kChat, R"({"messages":[]})", context_reply(params));
  EXPECT_EQ(action.kind, Action::Kind::fail);
  EXPECT_EQ(action.code, "invalid_prefill_handoff");
  EXPECT_NE(action.message.find("encoded_opaque_state"), std::string::npos);
}

}  // namespace
}  // namespace handoff::plugin_test
