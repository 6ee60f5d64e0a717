#include "shared/backend_abi/backend_sdk.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "shared/json/object_scan.hpp"

namespace handoff {
namespace {

/// A document as the sidecar would hand it to a plugin.
class Document {
 public:
  explicit Document(std::string text) : text_(std::move(text)) {
    EXPECT_EQ(scan_.scan(text_), json::ScanStatus::object) << text_;
    for (const auto& member : scan_.members()) {
      members_.push_back({{member.name.data(), member.name.size()},
                          member.key_begin,
                          member.value_begin,
                          member.value_end,
                          static_cast<std::uint32_t>(member.kind),
                          0});
    }
  }
  sdk::Object object() const {
    handoff_object out{};
    out.struct_size = sizeof(out);
    out.text = {text_.data(), text_.size()};
    out.text_kind = HANDOFF_TEXT_OBJECT;
    out.members = members_.data();
    out.member_count = members_.size();
    out.open_brace = scan_.open_brace();
    out.close_brace = scan_.close_brace();
    return sdk::Object(out);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  json::ObjectScan scan_;
  std::vector<handoff_member> members_;
};

std::string joined(const std::vector<handoff_piece>& pieces, std::string_view original) {
  std::string out;
  for (const auto& piece : pieces) {
    if (piece.data != nullptr) {
      out.append(piece.data, piece.size);
    } else {
      EXPECT_LE(piece.offset + piece.size, original.size());
      out.append(original.substr(piece.offset, piece.size));
    }
  }
  return out;
}

struct Row {
  const char* why;
  std::string before;
  std::vector<std::string> removed;
  std::vector<std::pair<std::string, std::string>> set;
  std::string after;
};

TEST(BodyEdit, LeavesEveryOtherByteAlone) {
  const Row rows[] = {
      {"nothing to do", R"( { "a" : 1 } )", {}, {}, R"( { "a" : 1 } )"},
      {"the only member goes", R"({ "a" : 1 })", {"a"}, {}, R"({  })"},
      {"the first goes with the comma behind it", R"({"a":1, "b":2})", {"a"}, {}, R"({"b":2})"},
      {"the last goes with the comma before it", R"({"a":1 , "b":2 })", {"b"}, {}, R"({"a":1 })"},
      {"one in the middle", R"({"a":1,"b":2,"c":3})", {"b"}, {}, R"({"a":1,"c":3})"},
      {"the first two", R"({"a":1,"b":2,"c":3})", {"a", "b"}, {}, R"({"c":3})"},
      {"the last two", R"({"a":1,"b":2,"c":3})", {"b", "c"}, {}, R"({"a":1})"},
      {"first and last", R"({"a":1,"b":2,"c":3})", {"a", "c"}, {}, R"({"b":2})"},
      {"all", R"({"a":1,"b":2,"c":3})", {"a", "b", "c"}, {}, R"({})"},
      {"all, and a new one", R"({"a":1,"b":2})", {"a", "b"}, {{"c", "3"}}, R"({"c":3})"},
      {"into an empty object", R"({ })", {}, {{"c", "3"}}, R"({"c":3 })"},
      {"behind the last", R"({"a":1 })", {}, {{"c", "3"}, {"d", "4"}}, R"({"a":1,"c":3,"d":4 })"},
      {"a value exchanged in place", R"({"a" : 1 ,"b":2})", {}, {{"a", "[7]"}}, R"({"a" : [7] ,"b":2})"},
      {"the neighbour of one that goes", R"({"a":1,"b":2,"c":3})", {"a"}, {{"b", "9"}}, R"({"b":9,"c":3})"},
      {"exchanged before one that goes", R"({"a":1,"b":2})", {"b"}, {{"a", "9"}}, R"({"a":9})"},
      {"a repeated name is set everywhere",
       R"({"a":1,"b":2,"a":3})",
       {},
       {{"a", "9"}},
       R"({"a":9,"b":2,"a":9})"},
      {"and goes everywhere", R"({"a":1,"b":2,"a":3})", {"a"}, {}, R"({"b":2})"},
      {"names are compared as they read", R"({"\u0061":1,"b":2})", {"a"}, {}, R"({"b":2})"},
      {"what goes and is set again stays in its place",
       R"({"a":1,"b":2})",
       {"a"},
       {{"a", "9"}},
       R"({"a":9,"b":2})"},
      {"setting twice is setting last", R"({})", {}, {{"c", "3"}, {"c", "4"}}, R"({"c":4})"},
      {"numbers, escapes and white space survive",
       R"({"x":1e400,"y":"\ud83d\ude00", "z":-0.0 })",
       {"y"},
       {},
       R"({"x":1e400, "z":-0.0 })"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.why);
    const Document document(row.before);
    sdk::BodyEdit edit(document.object());
    for (const auto& name : row.removed) edit.remove(name);
    for (const auto& [name, value] : row.set) edit.set(name, value);
    const auto after = joined(edit.pieces(), document.text());
    EXPECT_EQ(after, row.after);
  }
}

TEST(BodyEdit, EditsNestedObjectsAtTheirPlace) {
  const Document outer(R"({"a":1,"s": {"x":1, "y":2} ,"b":2})");
  const auto* member = outer.object().find("s");
  ASSERT_NE(member, nullptr);
  const Document inner{std::string(outer.object().raw(*member))};
  sdk::BodyEdit nested(inner.object(), member->value_begin);
  nested.remove("x");
  nested.set("z", "3");
  sdk::BodyEdit edit(outer.object());
  edit.set("s", nested);
  EXPECT_EQ(joined(edit.pieces(), outer.text()), R"({"a":1,"s": {"y":2,"z":3} ,"b":2})");
}

TEST(BodyEdit, RemovingWhatWasAppendedTakesItBack) {
  const Document document(R"({"a":1})");
  sdk::BodyEdit edit(document.object());
  edit.set("b", "2");
  edit.remove("b");
  EXPECT_EQ(joined(edit.pieces(), document.text()), R"({"a":1})");
}

using Json = nlohmann::ordered_json;

// Edits of random objects, against the same edits of a tree.
TEST(BodyEdit, AgreesWithATreeOnRandomEdits) {
  std::mt19937 random(1);
  const std::vector<std::string> names{"a", "b", "c", "d", "e f", "\xc3\xa9"};
  const std::vector<std::string> values{"1",    "\"x,}\"", "[1,{\"a\":2}]", "{\"b\":{}}",
                                        "null", "-1.5e3",  "true"};
  const std::vector<std::string> blanks{"", "", " ", "\n\t"};
  const auto any = [&](const auto& list) -> const std::string& { return list[random() % list.size()]; };
  for (int round = 0; round < 20000; ++round) {
    auto left = names;
    std::shuffle(left.begin(), left.end(), random);
    left.resize(random() % (names.size() + 1));
    std::string text = any(blanks) + "{" + any(blanks);
    auto tree = Json::object();
    for (std::size_t i = 0; i < left.size(); ++i) {
      const auto& value = any(values);
      text += (i == 0 ? "" : ",") + any(blanks) + "\"" + left[i] + "\"" + any(blanks) + ":" + any(blanks) +
              value + any(blanks);
      tree[left[i]] = Json::parse(value);
    }
    text += "}" + any(blanks);
    const Document document(text);
    sdk::BodyEdit edit(document.object());
    for (std::size_t edits = random() % 5; edits > 0; --edits) {
      const auto& name = any(names);
      if (random() % 2 == 0) {
        edit.remove(name);
        tree.erase(name);
      } else {
        const auto& value = any(values);
        edit.set(name, value);
        tree[name] = Json::parse(value);
      }
    }
    const auto after = joined(edit.pieces(), text);
    const auto parsed = nlohmann::json::parse(after, nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << text << " -> " << after;
    ASSERT_EQ(parsed, nlohmann::json(tree)) << text << " -> " << after;
  }
}

}  // namespace
}  // namespace handoff
