#include "sidecar/forgery_guard.hpp"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>

namespace handoff::sidecar {
namespace {

constexpr std::array<std::string_view, 5> kPaths = {
    "kv_transfer_params", "bootstrap_room", "sampling_params.extra_args.kv_transfer_params",
    "sampling_params.extra_args.ec_transfer_params", "a.b.c.d"};

/// The path that the guard names, or "" when it finds nothing.
std::string forged_in(const std::string& body) {
  const ForgeryGuard guard(kPaths);
  json::ObjectScan scan;
  EXPECT_EQ(scan.scan(body), json::ScanStatus::object) << body;
  return std::string(guard.find_forged(scan).value_or(""));
}

TEST(ForgeryGuard, FindsReservedFieldsThatSaySomething) {
  struct {
    const char* body;
    const char* path;
    const char* why;
  } const rows[] = {
      {R"({})", "", "empty"},
      {R"({"model":"m","prompt":"kv_transfer_params"})", "", "the name as a value"},
      {R"({"kv_transfer_params":null})", "", "null is harmless"},
      {R"({"kv_transfer_params":{}})", "", "an empty object is harmless"},
      {R"({"kv_transfer_params": { } })", "", "white space makes no difference"},
      {R"({"kv_transfer_params":{"a":1}})", "kv_transfer_params", "a handoff"},
      {R"({"kv_transfer_params":[]})", "kv_transfer_params", "no engine means an empty list"},
      {R"({"kv_transfer_params":""})", "kv_transfer_params", "an empty string is a value"},
      {R"({"kv_transfer_params":false})", "kv_transfer_params", "false is a value"},
      {R"({"kv_transfer_params":0})", "kv_transfer_params", "zero is a value"},
      {R"({"kv_transfer_params":NaN})", "kv_transfer_params", "Python takes it for a value"},
      {R"({"bootstrap_room":0})", "bootstrap_room", "zero is a room"},
      {R"({"KV_transfer_params":1})", "", "another name"},
      {R"({"kv_transfer_param":1,"kv_transfer_paramss":1})", "", "shorter and longer"},
      {R"({"metadata":{"kv_transfer_params":{"a":1}}})", "", "somewhere else"},
      {R"({"kv_transfer\u005fparams":{"a":1}})", "kv_transfer_params", "an escaped letter"},
      {R"({"\u006b\u0076_transfer_params":1})", "kv_transfer_params", "escaped letters"},
      {R"({"kv_transfer_params":null,"kv_transfer_params":1})", "kv_transfer_params", "the last of two"},
      {R"({"kv_transfer_params":1,"kv_transfer_params":null})", "kv_transfer_params", "the first of two"},
      {R"({"kv_transfer_params":{},"kv_transfer\u005fparams":1,"kv_transfer_params":null})",
       "kv_transfer_params", "the escaped one in the middle"},
      {R"({"sampling_params":{"extra_args":{"kv_transfer_params":1}}})",
       "sampling_params.extra_args.kv_transfer_params", "nested"},
      {R"({"sampling_params":{"extra_args":{"ec_transfer_params":1}}})",
       "sampling_params.extra_args.ec_transfer_params", "nested, a sibling"},
      {R"({"sampling_params":{"extra_args":{"kv_transfer_params":null,"ec_transfer_params":{}}}})", "",
       "nested and harmless"},
      {R"({"sampling_params":{"kv_transfer_params":1}})", "", "one level too high"},
      {R"({"sampling_params":{"extra_args":{"x":{"kv_transfer_params":1}}}})", "", "one level too low"},
      {R"({"sampling_params":{"extra_args":{}}, "sampling_params":{"extra_args":{"kv_transfer_params":1}}})",
       "sampling_params.extra_args.kv_transfer_params", "the second outer object"},
      {R"({"sampling_params":{"extra_args":{"kv_transfer_params":1}}, "sampling_params":{}})",
       "sampling_params.extra_args.kv_transfer_params", "the first outer object"},
      {R"({"sampling_params":{"extra_args":{"kv_transfer_params":1},"extra_args":null}})",
       "sampling_params.extra_args.kv_transfer_params", "the first inner object"},
      {R"({"s\u0061mpling_params":{"extra\u005fargs":{"kv_transfer_param\u0073":1}}})",
       "sampling_params.extra_args.kv_transfer_params", "escapes at every level"},
      {R"({"sampling_params":null})", "", "nothing nested"},
      {R"({"sampling_params":[{"extra_args":{"kv_transfer_params":1}}]})", "", "a list is no object"},
      {R"({"sampling_params":"{\"extra_args\":{\"kv_transfer_params\":1}}"})", "", "text is no object"},
      {R"({"sampling_params":{"extra_args" 1}})", "", "malformed within: the engine refuses it"},
      {R"({"a":{"b":{"c":{"d":1}}}})", "a.b.c.d", "four levels"},
      {R"({"a":{"b":{"c":{"d":{}}}}})", "", "four levels and harmless"},
      {R"({"a":1,"b":1,"c":1,"d":1})", "", "the parts alone"},
      {R"({"a.b.c.d":1})", "", "a key with dots is no path"},
  };
  for (const auto& row : rows) EXPECT_EQ(forged_in(row.body), row.path) << row.body << ": " << row.why;
}

TEST(ForgeryGuard, TakesAnObjectThatHidesItsMembersForAForgery) {
  std::string many;
  for (std::size_t i = 0; i <= json::ObjectScan::kDefaultMaxMembers; ++i)
    many += "\"k" + std::to_string(i) + "\":0,";
  many += "\"kv_transfer_params\":{\"a\":1}";
  EXPECT_EQ(forged_in(R"({"sampling_params":{"extra_args":{)" + many + "}}}"),
            "sampling_params.extra_args.kv_transfer_params");
  EXPECT_EQ(forged_in(R"({"sampling_params":{)" + many + "}}"),
            "sampling_params.extra_args.kv_transfer_params");
  EXPECT_EQ(forged_in(R"({"logit_bias":{)" + many + "}}"), "") << "nothing reserved can be in there";
}

TEST(ForgeryGuard, ChecksBothAFieldAndWhatItHolds) {
  const std::array<std::string_view, 3> paths = {"outer.inner", "outer", "outer"};
  const ForgeryGuard guard(paths);
  json::ObjectScan scan;
  ASSERT_EQ(scan.scan(R"({"outer":{"inner":null}})"), json::ScanStatus::object);
  EXPECT_EQ(guard.find_forged(scan), "outer");
  ASSERT_EQ(scan.scan(R"({"outer":{}})"), json::ScanStatus::object);
  EXPECT_EQ(guard.find_forged(scan), std::nullopt);
}

TEST(ForgeryGuard, GuardsNothingByDefault) {
  json::ObjectScan scan;
  ASSERT_EQ(scan.scan(R"({"kv_transfer_params":1})"), json::ScanStatus::object);
  EXPECT_EQ(ForgeryGuard().find_forged(scan), std::nullopt);
}

TEST(ForgeryGuard, RefusesBadPaths) {
  for (const std::string_view path : {"", ".", "a.", ".a", "a..b", "a.b.c.d.e"}) {
    const std::array<std::string_view, 2> paths = {"fine", path};
    EXPECT_THROW(ForgeryGuard{paths}, std::invalid_argument) << path;
  }
}

// Against a parsed tree: without duplicates, the guard and a look-up in the tree must agree.
TEST(ForgeryGuard, AgreesWithAParsedTree) {
  using nlohmann::json;
  std::mt19937 random(11);
  const auto pick = [&](auto... values) {
    const std::array<std::common_type_t<decltype(values)...>, sizeof...(values)> all = {values...};
    return all[random() % all.size()];
  };
  const auto value = [&] {
    return json::parse(pick("null", "{}", "{ }", "1", "[]", "\"\"", "{\"d\":1}", "{\"d\":null}"));
  };
  int forged = 0;
  for (int round = 0; round < 20'000; ++round) {
    json body = json::object();
    if (random() % 2) body["model"] = value();
    if (random() % 4 == 0) body["kv_transfer_params"] = value();
    if (random() % 4 == 0) body["sampling_params"]["extra_args"]["kv_transfer_params"] = value();
    if (random() % 4 == 0) body["sampling_params"]["extra_args"] = value();
    if (random() % 2) body["a"]["b"]["c"] = value();
    bool expected = false;
    for (const char* pointer :
         {"/kv_transfer_params", "/sampling_params/extra_args/kv_transfer_params", "/a/b/c/d"}) {
      const json::json_pointer at(pointer);
      expected |= body.contains(at) && !body[at].is_null() && body[at] != json::object();
    }
    forged += expected;
    ASSERT_EQ(!forged_in(body.dump(static_cast<int>(random() % 3) - 1)).empty(), expected) << body;
  }
  EXPECT_GT(forged, 1000);
}

}  // namespace
}  // namespace handoff::sidecar
