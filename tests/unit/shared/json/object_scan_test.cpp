#include "shared/json/object_scan.hpp"

#include <gtest/gtest.h>

#include <string>

namespace handoff::json {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

constexpr std::size_t kDeep = 100'000;

TEST(ObjectScan, Grammar) {
  struct Row {
    std::string_view text;
    ScanStatus status;
    const char* why;
  };
  const Row rows[] = {
      {"{}", ScanStatus::object, "empty"},
      {" \t\r\n{ \t\r\n} \t\r\n", ScanStatus::object, "all four kinds of white space"},
      {R"({"a":1})", ScanStatus::object, "one member"},
      {R"( { "a" : 1 , "b" : [ ] } )", ScanStatus::object, "white space at every place"},
      {R"({"":""})", ScanStatus::object, "empty key and value"},
      {R"({"a":NaN,"b":Infinity,"c":-Infinity})", ScanStatus::object, "Python's extensions"},
      {R"({"a":1e400,"b":-0.0E+0})", ScanStatus::object, "numbers beyond a double"},
      {R"({"a":nope})", ScanStatus::object, "an unknown word is for the engine to refuse"},
      {R"({"a":{"b":[1 2]}})", ScanStatus::object, "nested values are skipped, not judged"},
      {"{\"a\":\"\xFF\n\"}", ScanStatus::object, "bytes inside strings are not judged"},
      {R"({"a":"\\"})", ScanStatus::object, "escaped backslash before the closing quote"},
      {R"({"a":["]}",{"}":"{["}]})", ScanStatus::object, "brackets inside strings"},
      {"[1]", ScanStatus::not_an_object, "array"},
      {" \"x\"", ScanStatus::not_an_object, "string"},
      {"-1", ScanStatus::not_an_object, "number"},
      {"null", ScanStatus::not_an_object, "null"},
      {"NaN", ScanStatus::not_an_object, "Python's NaN"},
      {"", ScanStatus::malformed, "empty text"},
      {"  \n", ScanStatus::malformed, "white space only"},
      {"x", ScanStatus::malformed, "no value starts so"},
      {"\xEF\xBB\xBF{}", ScanStatus::malformed, "byte order mark"},
      {"\v{}", ScanStatus::malformed, "vertical tab is no white space"},
      {"\xC2\xA0{}", ScanStatus::malformed, "no-break space is no white space"},
      {"{", ScanStatus::malformed, "cut off after the brace"},
      {R"({"a)", ScanStatus::malformed, "cut off in a key"},
      {R"({"a")", ScanStatus::malformed, "cut off after a key"},
      {R"({"a":)", ScanStatus::malformed, "cut off before a value"},
      {R"({"a":1)", ScanStatus::malformed, "cut off after a value"},
      {R"({"a":1,)", ScanStatus::malformed, "cut off after a comma"},
      {R"({"a":"b\"})", ScanStatus::malformed, "the closing quote is escaped"},
      {R"({"a":"b\\\"})", ScanStatus::malformed, "odd run of backslashes"},
      {R"({"a" 1})", ScanStatus::malformed, "missing colon"},
      {R"({"a"::1})", ScanStatus::malformed, "two colons"},
      {R"({"a":})", ScanStatus::malformed, "missing value"},
      {R"({"a":,"b":1})", ScanStatus::malformed, "missing value before a comma"},
      {R"({"a":1 "b":2})", ScanStatus::malformed, "missing comma"},
      {R"({"a":1 2})", ScanStatus::malformed, "two values"},
      {R"({"a":"x""b":2})", ScanStatus::malformed, "missing comma after a string"},
      {R"({"a":1,})", ScanStatus::malformed, "trailing comma"},
      {R"({,"a":1})", ScanStatus::malformed, "leading comma"},
      {R"({"a":1,,"b":2})", ScanStatus::malformed, "two commas"},
      {R"({a:1})", ScanStatus::malformed, "bare key"},
      {R"({'a':1})", ScanStatus::malformed, "single quotes"},
      {R"({1:1})", ScanStatus::malformed, "number as key"},
      {R"({"a"b":1})", ScanStatus::malformed, "raw quote in a key"},
      {R"({"\x":1})", ScanStatus::malformed, "a key with an escape that JSON doesn't have"},
      {R"({"\u12":1})", ScanStatus::malformed, "a key with half an escape"},
      {R"({"a":1}x)", ScanStatus::malformed, "garbage after the object"},
      {R"({"a":1}})", ScanStatus::malformed, "one brace too many"},
      {"{}{}", ScanStatus::malformed, "two objects"},
      {"{}\0"sv, ScanStatus::malformed, "NUL after the object"},
      {R"({"a":[}]})", ScanStatus::malformed, "crossed brackets"},
      {R"({"a":[}})", ScanStatus::malformed, "array closed by a brace"},
      {R"({"a":{]})", ScanStatus::malformed, "object closed by a bracket"},
      {R"({"a":[1})", ScanStatus::malformed, "array never closed"},
      {R"({"a":["x})", ScanStatus::malformed, "string in an array never closed"},
      {R"({"a":1]})", ScanStatus::malformed, "stray bracket"},
      {R"({/*c*/"a":1})", ScanStatus::malformed, "comment"},
  };
  ObjectScan scan;
  for (const Row& row : rows) {
    EXPECT_EQ(scan.scan(row.text), row.status) << row.why << ": " << row.text;
    EXPECT_TRUE(row.status == ScanStatus::object || scan.members().empty()) << row.why;
  }
}

TEST(ObjectScan, ReportsPositionsAndKinds) {
  const std::string_view text =
      R"( {"a": 12 ,"b\n":"x","c":[{}] ,"d":{"e":1},"f":true,"g":false,"h":null,"i":NaN} )";
  ObjectScan scan;
  ASSERT_EQ(scan.scan(text), ScanStatus::object);
  EXPECT_EQ(scan.open_brace(), 1U);
  EXPECT_EQ(scan.close_brace(), text.size() - 2);
  struct Row {
    std::string_view name;
    std::string_view key;
    std::string_view value;
    ValueKind kind;
  };
  const Row rows[] = {
      {"a", R"("a")", "12", ValueKind::number},         {"b\n", R"("b\n")", R"("x")", ValueKind::string},
      {"c", R"("c")", "[{}]", ValueKind::array},        {"d", R"("d")", R"({"e":1})", ValueKind::object},
      {"f", R"("f")", "true", ValueKind::literal_true}, {"g", R"("g")", "false", ValueKind::literal_false},
      {"h", R"("h")", "null", ValueKind::null},         {"i", R"("i")", "NaN", ValueKind::other},
  };
  ASSERT_EQ(scan.members().size(), std::size(rows));
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    const Member& member = scan.members()[i];
    EXPECT_EQ(member.name, rows[i].name);
    EXPECT_EQ(text.substr(member.key_begin, member.key_end - member.key_begin), rows[i].key);
    EXPECT_EQ(scan.value(member), rows[i].value);
    EXPECT_EQ(member.kind, rows[i].kind) << rows[i].name;
  }
}

TEST(ObjectScan, ListsDuplicatesAndFindsTheLast) {
  ObjectScan scan;
  ASSERT_EQ(scan.scan(R"({"n":1,"\u006e":2,"m":0,"n":3})"), ScanStatus::object);
  EXPECT_EQ(scan.members().size(), 4U);
  ASSERT_NE(scan.find_last("n"), nullptr);
  EXPECT_EQ(scan.value(*scan.find_last("n")), "3");
  EXPECT_EQ(scan.find_last("absent"), nullptr);
}

// A forged field must be seen however its name is spelled.
TEST(ObjectScan, DecodesEscapedNames) {
  ObjectScan scan;
  ASSERT_EQ(scan.scan(R"({"kv_tr\u0061nsfer\u005Fparams":{},"\/\"\\":1,"\ud83d\ude00":2,"\ud83d":3})"),
            ScanStatus::object);
  EXPECT_EQ(scan.members()[0].name, "kv_transfer_params");
  EXPECT_EQ(scan.members()[1].name, "/\"\\");
  EXPECT_EQ(scan.members()[2].name, "\xF0\x9F\x98\x80");
  EXPECT_EQ(scan.members()[3].name, "\xED\xA0\xBD");
}

TEST(ObjectScan, EscapedNamesStayValidWhileTheArenaGrows) {
  std::string text = "{";
  for (int i = 0; i < 2000; ++i) text += (i == 0 ? "" : ",") + R"("\u0041)"s + std::to_string(i) + "\":0";
  text += "}";
  ObjectScan scan;
  ASSERT_EQ(scan.scan(text), ScanStatus::object);
  for (std::size_t i = 0; i < 2000; ++i) ASSERT_EQ(scan.members()[i].name, "A" + std::to_string(i));
}

TEST(ObjectScan, LimitsMembers) {
  const std::string_view text = R"({"a":1,"b":2,"c":3})";
  ObjectScan scan;
  EXPECT_EQ(scan.scan(text, 3), ScanStatus::object);
  EXPECT_EQ(scan.scan(text, 2), ScanStatus::too_many_members);
  EXPECT_TRUE(scan.members().empty());
  EXPECT_EQ(scan.scan("{}", 0), ScanStatus::object);
}

TEST(ObjectScan, IsReusableAfterAnyOutcome) {
  ObjectScan scan;
  ASSERT_EQ(scan.scan(R"({"a":[[[)"), ScanStatus::malformed);
  ASSERT_EQ(scan.scan(R"({"\u0061":[1]})"), ScanStatus::object);
  ASSERT_EQ(scan.scan("[]"), ScanStatus::not_an_object);
  EXPECT_EQ(scan.open_brace(), 0U);
  ASSERT_EQ(scan.scan(R"({"b":[]})"), ScanStatus::object);
  EXPECT_EQ(scan.members()[0].name, "b");
}

TEST(ObjectScan, DepthNeedsNoCallStack) {
  ObjectScan scan;
  const std::string arrays = "{\"a\":" + std::string(kDeep, '[') + std::string(kDeep, ']') + "}";
  ASSERT_EQ(scan.scan(arrays), ScanStatus::object);
  EXPECT_EQ(scan.value(scan.members()[0]).size(), 2 * kDeep);
  std::string mixed = "{\"a\":";
  for (std::size_t i = 0; i < kDeep; ++i) mixed += "[{\"b\":";
  mixed += "0";
  for (std::size_t i = 0; i < kDeep; ++i) mixed += "}]";
  EXPECT_EQ(scan.scan(mixed + "}"), ScanStatus::object);
  EXPECT_EQ(scan.scan(mixed), ScanStatus::malformed);
  EXPECT_EQ(scan.scan("{\"a\":" + std::string(kDeep, '[')), ScanStatus::malformed);
}

// Every length around the 16- and 64-byte blocks, with the quote and the bracket at the very end of the text.
TEST(ObjectScan, BlockEdgesDoNotMatter) {
  ObjectScan scan;
  for (std::size_t length = 0; length < 300; ++length) {
    const std::string string_body = "{\"s\":\"" + std::string(length, 'x') + "\\\"\"}";
    ASSERT_EQ(scan.scan(string_body), ScanStatus::object) << length;
    ASSERT_EQ(scan.value(scan.members()[0]).size(), length + 4) << length;
    ASSERT_EQ(scan.scan(string_body.substr(0, string_body.size() - 2)), ScanStatus::malformed) << length;
    const std::string array_body = "{\"s\":[" + std::string(length, '1') + "]}";
    ASSERT_EQ(scan.scan(array_body), ScanStatus::object) << length;
    ASSERT_EQ(scan.value(scan.members()[0]).size(), length + 2) << length;
    ASSERT_EQ(scan.scan(array_body.substr(0, array_body.size() - 2)), ScanStatus::malformed) << length;
    ASSERT_EQ(scan.scan("{\"s\":\"" + std::string(length, '\\') + "\"}"),
              length % 2 == 0 ? ScanStatus::object : ScanStatus::malformed)
        << length;
  }
}

}  // namespace
}  // namespace handoff::json
