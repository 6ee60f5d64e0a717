// Random documents and random damage, with nlohmann/json as the strict judge: whatever it takes for an
// object, the scan must take for the same object. Replay a failure with HANDOFF_TEST_SEED=<the printed seed>.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "shared/json/encoding.hpp"
#include "shared/json/object_scan.hpp"

namespace handoff::json {
namespace {

using namespace std::string_view_literals;

/// Collects the names of the outermost object's members, duplicates included.
class OutermostNames : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    if (depth_ == 0) is_object_ = true;
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) names_.push_back(name);
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override {
    ++depth_;
    return true;
  }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  bool is_object() const { return is_object_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  bool leave() {
    --depth_;
    return true;
  }

  std::size_t depth_ = 0;
  bool is_object_ = false;
  std::vector<std::string> names_;
};

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }

  std::string object(int depth) {
    std::string out = "{" + space();
    const std::size_t count = below(6);
    for (std::size_t i = 0; i < count; ++i) {
      if (i != 0) out += "," + space();
      out += string(key_length()) + space() + ":" + space() + value(depth) + space();
    }
    return out + "}";
  }

  /// Changes, drops, doubles or inserts a few bytes, with a taste for structural ones.
  std::string damage(std::string text) {
    constexpr std::string_view kTaste = "{}[]\",:\\ \n0-.eEtfnuNI\0\x1F\x7F\x80\xC3\xEF\xFF"sv;
    const std::size_t edits = 1 + below(3);
    for (std::size_t i = 0; i < edits && !text.empty(); ++i) {
      const std::size_t at = below(text.size());
      const char byte = kTaste[below(kTaste.size())];
      switch (below(5)) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.erase(at, 1 + below(4));
          break;
        case 2:
          text.insert(at, 1, byte);
          break;
        case 3:
          text.insert(at, text.substr(at, 1 + below(12)));
          break;
        default:
          text.resize(at);
      }
    }
    return text;
  }

  std::string space() {
    constexpr std::string_view kSpaces = " \t\r\n";
    std::string out;
    while (below(4) == 0) out += kSpaces[below(kSpaces.size())];
    return out;
  }

 private:
  std::size_t key_length() { return below(20) == 0 ? below(80) : below(3); }

  std::string value(int depth) {
    switch (below(depth == 0 ? 5 : 7)) {
      case 0:
        return string(below(4) == 0 ? below(200) : below(12));
      case 1:
        return number();
      case 2:
        return "true";
      case 3:
        return "null";
      case 4:
        return "false";
      case 5:
        return array(depth - 1);
      default:
        return object(depth - 1);
    }
  }

  std::string array(int depth) {
    if (below(20) == 0) return deep_array();
    std::string out = "[" + space();
    const std::size_t count = below(20) == 0 ? below(100) : below(5);
    for (std::size_t i = 0; i < count; ++i) out += (i == 0 ? "" : "," + space()) + value(depth) + space();
    return out + "]";
  }

  std::string deep_array() {
    const std::size_t levels = below(300);
    return std::string(levels + 1, '[') + std::string(levels + 1, ']');
  }

  std::string number() {
    std::string out = below(2) == 0 ? "-" : "";
    out +=
        below(4) == 0 ? "0" : std::to_string(1 + below(1'000'000)) + std::string(below(3) * below(30), '9');
    if (below(3) == 0) out += "." + std::to_string(below(1000));
    if (below(3) == 0) out += (below(2) == 0 ? "e" : "E+") + std::to_string(below(3));
    return out;
  }

  /// Few distinct letters, so that names repeat.
  std::string string(std::size_t length) {
    const std::string_view pieces[] = {"a",   "b",       "\\n",      "\\\\",    "\\\"",           "\\u0061",
                                       "\\/", "\\u00e9", "\xC3\xA9", "\\u20ac", "\\ud83d\\ude00", "{",
                                       "]",   ":"};
    std::string out = "\"";
    for (std::size_t i = 0; i < length; ++i)
      out += pieces[below(3) == 0 ? below(std::size(pieces)) : below(2)];
    return out + "\"";
  }

  std::mt19937_64 random_;
};

/// The scanner gets the text in memory of exactly its size, so that a sanitizer sees a read past the end.
::testing::AssertionResult agrees_with_strict_parser(ObjectScan& scan, const std::string& text) {
  const auto exact = std::make_unique<char[]>(text.size());
  std::copy(text.begin(), text.end(), exact.get());
  const ScanStatus status = scan.scan({exact.get(), text.size()});
  if (detect_encoding(text) != EncodingProblem::none) return ::testing::AssertionSuccess();
  // nlohmann/json takes a NUL between tokens for the end of the text, whatever follows; no engine does.
  if (text.find('\0') != std::string::npos) return ::testing::AssertionSuccess();
  OutermostNames strict;
  if (!nlohmann::json::sax_parse(text, &strict)) return ::testing::AssertionSuccess();
  if (!strict.is_object()) {
    return status == ScanStatus::not_an_object
               ? ::testing::AssertionSuccess()
               : ::testing::AssertionFailure() << "not told from an object: " << text;
  }
  if (status != ScanStatus::object) return ::testing::AssertionFailure() << "refused: " << text;
  std::vector<std::string> names;
  for (const Member& member : scan.members()) names.emplace_back(member.name);
  if (names != strict.names()) return ::testing::AssertionFailure() << "other names: " << text;
  const auto tree = nlohmann::json::parse(text);
  for (const auto& [name, value] : tree.items()) {
    const Member* member = scan.find_last(name);
    const auto ours = nlohmann::json::parse(scan.value(*member), nullptr, /*allow_exceptions=*/false);
    if (ours != value) return ::testing::AssertionFailure() << "other value of " << name << ": " << text;
    const bool same_kind = value.is_object() == (member->kind == ValueKind::object) &&
                           value.is_array() == (member->kind == ValueKind::array) &&
                           value.is_string() == (member->kind == ValueKind::string) &&
                           value.is_number() == (member->kind == ValueKind::number) &&
                           value.is_null() == (member->kind == ValueKind::null);
    if (!same_kind) return ::testing::AssertionFailure() << "other kind of " << name << ": " << text;
  }
  return ::testing::AssertionSuccess();
}

std::uint64_t test_seed() {
  const char* given = std::getenv("HANDOFF_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

class ObjectScanProperty : public ::testing::Test {
 protected:
  void SetUp() override { std::cout << "HANDOFF_TEST_SEED=" << seed_ << '\n'; }

  std::uint64_t seed_ = test_seed();
  Generator generator_{seed_};
  ObjectScan scan_;
};

TEST_F(ObjectScanProperty, AgreesOnValidDocuments) {
  for (int i = 0; i < 4000; ++i) {
    const std::string text = generator_.space() + generator_.object(4) + generator_.space();
    ASSERT_TRUE(nlohmann::json::accept(text)) << "the generator must write JSON: " << text;
    ASSERT_TRUE(agrees_with_strict_parser(scan_, text));
  }
}

TEST_F(ObjectScanProperty, SurvivesAndAgreesOnDamagedDocuments) {
  for (int i = 0; i < 1000; ++i) {
    const std::string text = generator_.object(3);
    for (int j = 0; j < 12; ++j) ASSERT_TRUE(agrees_with_strict_parser(scan_, generator_.damage(text)));
  }
}

// Nothing shorter than the whole is an object.
TEST_F(ObjectScanProperty, NoPrefixIsAnObject) {
  for (int i = 0; i < 200; ++i) {
    const std::string text = generator_.object(2);
    for (std::size_t size = 0; size < text.size(); ++size) {
      ASSERT_EQ(scan_.scan(std::string_view(text).substr(0, size)), ScanStatus::malformed) << text;
    }
  }
}

}  // namespace
}  // namespace handoff::json
