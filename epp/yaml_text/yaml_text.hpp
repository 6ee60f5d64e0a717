#pragma once

#include <yaml-cpp/yaml.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

namespace handoff::epp {

// Lists and maps within each other. The files of this program have four levels.
inline constexpr std::size_t kMaxYamlDepth = 16;

// Texts, lists and maps in all: each takes some hundred bytes of memory. Ten thousand endpoints have fifty.
inline constexpr std::size_t kMaxYamlNodes = 500'000;

struct YamlProblem {
  std::string text;  // with the line, as in "not YAML (line 3): illegal map value"
};

// The one document of a settings file; null when there is none. Takes time and memory by the size of the
// text, whatever it says: what goes beyond the bounds above, or has a second document, is refused
// where that begins. Any thread.
std::variant<YAML::Node, YamlProblem> read_yaml(std::string_view text);

// " (line 3)", to follow what a message is about; empty when unknown.
std::string line_of(const YAML::Node& node);

}  // namespace handoff::epp
