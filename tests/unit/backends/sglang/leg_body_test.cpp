// What both engines are asked: S01 to S09 of PROTOCOL.md.
#include <set>

#include "tests/unit/backends/sglang/sglang_case.hpp"

namespace handoff::plugin_test {
namespace {

using SglangLegBody = SglangCase;

TEST_F(SglangLegBody, BothLegsStartAtOnceWithTheSamePairing) {
  const auto exchange = begin(kChat, kChatBody);
  const auto prefill = leg(exchange->begin_actions(), HANDOFF_ROLE_PREFILL);
  const auto decode = leg(exchange->begin_actions(), HANDOFF_ROLE_DECODE);
  EXPECT_EQ(prefill.target, HANDOFF_TARGET_PREFILL);
  EXPECT_EQ(decode.target, HANDOFF_TARGET_LOCAL);
  EXPECT_EQ(prefill.reply, HANDOFF_REPLY_COLLECT);
  EXPECT_EQ(decode.reply, HANDOFF_REPLY_HOLD);
  for (const auto* name : {"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"}) {
    EXPECT_EQ(member(prefill, name), member(decode, name)) << name;
  }
  EXPECT_EQ(member(prefill, "bootstrap_host"), "10.0.0.9");
  EXPECT_EQ(member(prefill, "bootstrap_port"), 8998);
  EXPECT_EQ(member(prefill, "rid").get<std::string>().size(), 32U);
}

TEST_F(SglangLegBody, NeitherLegMayBeSentAgain) {
  const auto exchange = begin(kChat, kChatBody);
  for (const auto& action : exchange->begin_actions())
    EXPECT_EQ(action.leg.flags & HANDOFF_LEG_MAY_RESEND, 0U);
}

TEST_F(SglangLegBody, PrefillIsNotStreamedAndKeepsEveryLimit) {
  const auto prefill =
      prefill_leg(kChat, R"({"messages":[],"stream":true,"stream_options":{"include_usage":true},)"
                         R"("max_tokens":700,"min_tokens":3,"ignore_eos":true})");
  EXPECT_EQ(member(prefill, "stream"), false);
  EXPECT_EQ(member(prefill, "stream_options"), "absent");
  EXPECT_EQ(member(prefill, "max_tokens"), 700);
  EXPECT_EQ(member(prefill, "min_tokens"), 3);
  EXPECT_EQ(member(prefill, "ignore_eos"), true);
}

TEST_F(SglangLegBody, DecodeKeepsTheClientsBytes) {
  const std::string body =
      R"({ "messages" : [ ] , "stream":true,"stream_options":{"include_usage":true}, "seed":9223372036854775808, )"
      R"("x":1e400,"temperature":1.0,"\u0061":"\u00e9","a":2 })";
  const auto decode = decode_leg(kChat, body);
  EXPECT_TRUE(decode.body.starts_with(body.substr(0, body.size() - 2))) << decode.body;
}

TEST_F(SglangLegBody, RoomsAreSixtyThreeBitsSpelledExactly) {
  std::set<std::uint64_t> rooms;
  bool above_double = false;
  for (int i = 0; i < 200; ++i) {
    const auto leg = prefill_leg(kChat, kChatBody);
    const auto room = member(leg, "bootstrap_room");
    ASSERT_TRUE(room.is_number_integer());
    const auto value = room.get<std::uint64_t>();
    EXPECT_LT(value, std::uint64_t{1} << 63);
    above_double |= value > (std::uint64_t{1} << 53) && value % 2 == 1;
    EXPECT_NE(leg.body.find("\"bootstrap_room\":" + std::to_string(value) + ","), std::string::npos);
    rooms.insert(value);
  }
  EXPECT_EQ(rooms.size(), 200U);
  EXPECT_TRUE(above_double);
}

TEST_F(SglangLegBody, ClientsOwnIdAndNullFieldsAreReplaced) {
  const auto decode = decode_leg(
      kChat,
      R"({"rid":"mine","bootstrap_room":null,"bootstrap_host":{},"bootstrap_pair_key":null,"messages":[]})");
  EXPECT_NE(member(decode, "rid"), "mine");
  EXPECT_TRUE(member(decode, "bootstrap_room").is_number_integer());
  EXPECT_EQ(member(decode, "bootstrap_host"), "10.0.0.9");
  EXPECT_EQ(member(decode, "bootstrap_pair_key"), "absent");
}

TEST_F(SglangLegBody, BootstrapHostHasNoBracketsAndNoPort) {
  const auto exchange = begin(kChat, kChatBody, {}, {.host = "fd00::1", .port = 8000});
  EXPECT_EQ(member(leg(exchange->begin_actions(), HANDOFF_ROLE_DECODE), "bootstrap_host"), "fd00::1");
}

TEST_F(SglangLegBody, BatchesHaveAListOfRoomsAndIds) {
  const auto exchange = begin(kGenerate, R"({"text":["a","b","c"],"stream":true})");
  const auto prefill = leg(exchange->begin_actions(), HANDOFF_ROLE_PREFILL);
  const auto decode = leg(exchange->begin_actions(), HANDOFF_ROLE_DECODE);
  for (const auto* name : {"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"}) {
    ASSERT_TRUE(member(prefill, name).is_array()) << name;
    EXPECT_EQ(member(prefill, name).size(), 3U) << name;
    EXPECT_EQ(member(prefill, name), member(decode, name)) << name;
  }
  const auto rooms = member(prefill, "bootstrap_room").get<std::set<std::uint64_t>>();
  EXPECT_EQ(rooms.size(), 3U);
  EXPECT_EQ(member(prefill, "rid").get<std::set<std::string>>().size(), 3U);
}

TEST_F(SglangLegBody, HeadersThatReplaceARoomAreRemoved) {
  const auto exchange =
      begin(kChat, kChatBody, {{"X-Override-Bootstrap-Room", "7"}, {"x-override-rid", "a"}});
  for (const auto& action : exchange->begin_actions()) {
    EXPECT_EQ(action.leg.header("x-override-bootstrap-room"), "");
    EXPECT_EQ(action.leg.header("x-override-bootstrap-host"), "");
    EXPECT_EQ(action.leg.header("x-override-bootstrap-port"), "");
    EXPECT_EQ(action.leg.header("x-override-rid"), "");
  }
}

TEST_F(SglangLegBody, RanksOfTheClientAreForDecodeAndThoseOfThePickerGoToTheirEngine) {
  const auto body = R"({"messages":[],"routed_dp_rank":1,"data_parallel_rank":1,"disagg_prefill_dp_rank":0})";
  for (const auto* name : {"routed_dp_rank", "data_parallel_rank"}) {
    EXPECT_EQ(member(decode_leg(kChat, body), name), 1);
    EXPECT_EQ(member(prefill_leg(kChat, body), name), "absent");
  }
  EXPECT_EQ(member(prefill_leg(kChat, body), "disagg_prefill_dp_rank"), "absent");
  EXPECT_EQ(member(decode_leg(kChat, body), "disagg_prefill_dp_rank"), "absent")
      << "how many there are is not known";
  const auto exchange =
      begin(kChat, kChatBody,
            {{"x-dynamo-prefill-dp-rank", "3"}, {"x-dynamo-dp-rank", "2"}, {"x-data-parallel-rank", "9"}});
  const auto prefill = leg(exchange->begin_actions(), HANDOFF_ROLE_PREFILL);
  const auto decode = leg(exchange->begin_actions(), HANDOFF_ROLE_DECODE);
  EXPECT_EQ(prefill.header("x-data-parallel-rank"), "3");
  EXPECT_EQ(decode.header("x-data-parallel-rank"), "2");
  EXPECT_EQ(member(decode, "disagg_prefill_dp_rank"), 3);
}

}  // namespace
}  // namespace handoff::plugin_test
