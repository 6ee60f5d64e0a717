#include "epp/yaml_text/yaml_text.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/parser.h>

#include <sstream>

namespace handoff::epp {
namespace {

std::string text_of(const YAML::Mark& mark) {
  return mark.is_null() ? "" : " (line " + std::to_string(mark.line + 1) + ")";
}

struct Refused {
  std::string text;
};

// Looks at the text before it becomes nodes. The parser goes 500 levels deep, and makes documents without end
// of a text that begins with a comma.
class BoundsCheck final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (has_document_) throw Refused{"has a second YAML document" + text_of(mark)};
    has_document_ = true;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override {
    count(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    enter(mark);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    enter(mark);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void count(const YAML::Mark& mark) {
    if (++nodes_ > kMaxYamlNodes) {
      throw Refused{"has more than " + std::to_string(kMaxYamlNodes) + " values" + text_of(mark)};
    }
  }
  void enter(const YAML::Mark& mark) {
    count(mark);
    if (++depth_ > kMaxYamlDepth) {
      throw Refused{"has lists and maps within each other more than " + std::to_string(kMaxYamlDepth) +
                    " deep" + text_of(mark)};
    }
  }

  std::size_t depth_ = 0;
  std::size_t nodes_ = 0;
  bool has_document_ = false;
};

}  // namespace

std::variant<YAML::Node, YamlProblem> read_yaml(std::string_view text) {
  try {
    std::istringstream input{std::string(text)};
    YAML::Parser parser(input);
    BoundsCheck check;
    while (parser.HandleNextDocument(check)) {
    }
    return YAML::Load(std::string(text));
  } catch (const Refused& refused) {
    return YamlProblem{refused.text};
  } catch (const YAML::Exception& error) {
    return YamlProblem{"not YAML" + text_of(error.mark) + ": " + error.msg};
  }
}

std::string line_of(const YAML::Node& node) {
  return text_of(node.Mark());
}

}  // namespace handoff::epp
