#include "epp/yaml_text/yaml_text.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

std::string error_of(const std::string& text) {
  const auto read = read_yaml(text);
  const auto* problem = std::get_if<YamlProblem>(&read);
  return problem == nullptr ? "" : problem->text;
}

std::string nested(const std::string& open, const std::string& close, std::size_t depth) {
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) text += open;
  for (std::size_t i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(YamlText, GivesTheNodesWithTheirLines) {
  const auto read = read_yaml("a: 1\nb: &x [2, 3]\nc: *x\n");
  const auto& root = std::get<YAML::Node>(read);
  EXPECT_EQ(root["c"][1].as<int>(), 3);
  EXPECT_EQ(line_of(root["b"]), " (line 2)");
  EXPECT_TRUE(std::get<YAML::Node>(read_yaml("")).IsNull());
}

TEST(YamlText, RefusesDepthWhereItBegins) {
  EXPECT_EQ(error_of(nested("[", "]", kMaxYamlDepth)), "");
  const std::string said = "has lists and maps within each other more than 16 deep";
  EXPECT_EQ(error_of(nested("[", "]", kMaxYamlDepth + 1)), said + " (line 1)");
  EXPECT_EQ(error_of(nested("[\n", "]\n", kMaxYamlDepth + 1)), said + " (line 17)");
  for (const char* open : {"[", "{", "{[", "{a: ", "[a, ", "- ", "? ", "- - ", "{? "}) {
    EXPECT_EQ(error_of(nested(open, "", 25'000)), said + " (line 1)") << open;
  }
  std::string block;
  for (std::size_t i = 0; i < 100; ++i) block += std::string(i, ' ') + "a:\n";
  EXPECT_EQ(error_of(block), said + " (line 17)");
}

TEST(YamlText, RefusesMoreThanOneDocument) {
  EXPECT_EQ(error_of("a: 1\n---\nb: 2\n"), "has a second YAML document (line 2)");
  EXPECT_EQ(error_of(","), "has a second YAML document (line 1)") << "the parser itself finds no end";
}

TEST(YamlText, RefusesTooManyValues) {
  std::string text = "[";
  for (std::size_t i = 1; i < kMaxYamlNodes; ++i) text += "a,";
  EXPECT_EQ(error_of(text + "]"), "");
  EXPECT_EQ(error_of(text + "a]"), "has more than 500000 values (line 1)");
}

TEST(YamlText, SaysWhereItIsNoYaml) {
  EXPECT_EQ(error_of("a: [\n").rfind("not YAML (line ", 0), 0U) << error_of("a: [\n");
  EXPECT_EQ(error_of("a: *nobody").rfind("not YAML (line 1)", 0), 0U) << error_of("a: *nobody");
}

}  // namespace
}  // namespace handoff::epp
