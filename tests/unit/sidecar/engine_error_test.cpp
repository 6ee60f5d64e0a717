#include "sidecar/engine_error.hpp"

#include <gtest/gtest.h>

namespace handoff::sidecar {
namespace {

TEST(EngineErrorWord, IsTheTypeOrTheCode) {
  EXPECT_EQ(engine_error_word(R"({"error":{"message":"secret","type":"InternalServerError","code":500}})"),
            "InternalServerError");
  EXPECT_EQ(engine_error_word(R"({"error":{"message":"secret","code":503}})"), "503");
  EXPECT_EQ(engine_error_word(R"({"error":{"type":null,"code":"queue_full"}})"), "queue_full");
  EXPECT_EQ(engine_error_word(R"({"object":"error","message":"secret","type":"BadRequestError","code":400})"),
            "BadRequestError");
  EXPECT_EQ(engine_error_word(R"({"error":"secret words","type":"abort"})"), "abort");
}

TEST(EngineErrorWord, NeverIsAText) {
  for (const std::string body :
       {"", "secret", "[]", "{", "\"type\"", R"({"message":"secret"})", R"({"error":{"type":"two words"}})",
        R"({"error":{"type":"a\nb"}})", R"({"error":{"type":["secret"]}})", R"({"error":{"type":""}})",
        R"({"error":{"type":"\u0041"}})"}) {
    EXPECT_EQ(engine_error_word(body), "") << body;
  }
  EXPECT_EQ(engine_error_word(R"({"type":")" + std::string(65, 'x') + R"("})"), "");
  EXPECT_EQ(engine_error_word(R"({"type":"a","x":")" + std::string(70000, 'x') + R"("})"), "");
}

}  // namespace
}  // namespace handoff::sidecar
