// Random requests: each leg's body is the client's but for the members that it is meant to change.
#include <nlohmann/json.hpp>

#include <random>
#include <set>

#include "tests/unit/backends/vllm/vllm_case.hpp"

namespace handoff::plugin_test {
namespace {

using Json = nlohmann::ordered_json;
using Random = std::mt19937;
using Names = std::set<std::string>;

/// Random JSON text with random white space and odd spellings.
class RequestWriter {
 public:
  explicit RequestWriter(Random& random) : random_(random) {}

  std::string object(const std::vector<std::string>& names, int depth) {
    std::string out = space() + "{";
    Names used;
    const auto count = random_() % 7;
    for (std::size_t i = 0; i < count; ++i) {
      const auto& name = names[random_() % names.size()];
      if (!used.insert(name).second) continue;
      if (used.size() > 1) out += ",";
      out += space() + "\"" + name + "\"" + space() + ":" + space() + value_of(name, depth) + space();
    }
    return out + space() + "}" + space();
  }

 private:
  std::string space() {
    constexpr std::array<std::string_view, 5> kSpaces{"", "", " ", "\n\t", "  "};
    return std::string(kSpaces.at(random_() % kSpaces.size()));
  }
  std::string value_of(const std::string& name, int depth) {
    if (name == "n" || name == "best_of") return "1";
    if (name == "prompt") return R"(["one, [\"prompt\"]"])";
    if (name == "kv_transfer_params") return random_() % 2 == 0 ? "null" : "{ }";
    if (name == "sampling_params" || name == "extra_args") {
      return depth < 3 ? object({"max_tokens", "min_tokens", "n", "extra_args", "seed", "x"}, depth + 1)
                       : "null";
    }
    constexpr std::array<std::string_view, 10> kValues{
        "1e400",   "9223372036854775807", "1.0",  "-0.0",    R"("\u00e9\ud83d\ude00 \"},{")",
        "[1,[2]]", R"({"max_tokens":7})", "null", R"("\\")", "true"};
    return std::string(kValues.at(random_() % kValues.size()));
  }

  Random& random_;
};

/// The raw text of every member, by name.
std::map<std::string, std::string> members_of(const std::string& text) {
  json::ObjectScan scan;
  EXPECT_EQ(scan.scan(text), json::ScanStatus::object) << text;
  std::map<std::string, std::string> out;
  for (const auto& member : scan.members()) out[std::string(member.name)] = scan.value(member);
  return out;
}

/// Members of `edited` that are not in `original` in the same spelling, and the other way round.
Names differences(const std::string& original, const std::string& edited) {
  const auto before = members_of(original);
  const auto after = members_of(edited);
  Names out;
  for (const auto& [name, value] : before) {
    const auto found = after.find(name);
    if (found == after.end() || found->second != value) out.insert(name);
  }
  for (const auto& [name, value] : after) {
    if (before.count(name) == 0) out.insert(name);
  }
  return out;
}

void expect_within(const Names& found, const Names& intended, const std::string& context) {
  for (const auto& name : found) EXPECT_EQ(intended.count(name), 1U) << name << " in " << context;
}

/// Whether a body is JSON to another parser; that one has no 1e400.
bool parses(std::string text) {
  for (auto at = text.find("1e400"); at != std::string::npos; at = text.find("1e400", at)) text[at + 2] = '2';
  return Json::accept(text);
}

class VllmLegBodyProperty : public VllmCase, public ::testing::WithParamInterface<std::string_view> {};

TEST_P(VllmLegBodyProperty, DiffersInTheIntendedMembersOnly) {
  const auto path = GetParam();
  const bool generate = path == kGenerate;
  Names for_prefill{"stream", "stream_options", "kv_transfer_params"};
  Names for_decode{"kv_transfer_params"};
  if (generate) {
    for_prefill.insert("sampling_params");
    for_decode.insert("sampling_params");
  } else {
    for_prefill.insert({"min_tokens", "min_completion_tokens"});
    if (path == kResponses) {
      for_prefill.insert({"max_output_tokens", "store"});
    } else {
      for_prefill.insert("max_tokens");
      if (path != kMessages) for_prefill.insert("max_completion_tokens");
    }
  }
  const std::vector<std::string> names{"model",
                                       "stream",
                                       "stream_options",
                                       "max_tokens",
                                       "max_completion_tokens",
                                       "max_output_tokens",
                                       "min_tokens",
                                       "min_completion_tokens",
                                       "kv_transfer_params",
                                       "sampling_params",
                                       "n",
                                       "store",
                                       "x",
                                       "prompt",
                                       "seed",
                                       "cache_salt",
                                       ""};
  Random random(99);
  RequestWriter writer(random);
  int disaggregated = 0;
  for (int round = 0; round < 6000; ++round) {
    const auto body = writer.object(names, 0);
    ASSERT_TRUE(parses(body)) << body;
    const auto exchange = begin(path, body);
    const auto first = only(exchange->begin_actions());
    if (first.kind == Action::Kind::decode_only) {  // a stream that decode would refuse
      EXPECT_EQ(first.reason.substr(0, 6), "stream") << body;
      continue;
    }
    ++disaggregated;
    const auto prefill = first.leg.body;
    const auto decode = only(exchange->deliver(leg_done(1, 200, reply_with(kHandoff)))).leg.body;
    ASSERT_TRUE(parses(prefill)) << body << " became " << prefill;
    ASSERT_TRUE(parses(decode)) << body << " became " << decode;
    expect_within(differences(body, prefill), for_prefill, prefill);
    expect_within(differences(body, decode), for_decode, decode);
    EXPECT_EQ(members_of(decode)["kv_transfer_params"], kHandoff);
    EXPECT_EQ(members_of(prefill)["kv_transfer_params"], kAsk);
    EXPECT_EQ(members_of(prefill)["stream"], "false");
    if (generate && members_of(body)["sampling_params"].substr(0, 1) == "{") {
      const auto before = members_of(body)["sampling_params"];
      expect_within(differences(before, members_of(prefill)["sampling_params"]),
                    {"max_tokens", "min_tokens", "extra_args"}, prefill);
      expect_within(differences(before, members_of(decode)["sampling_params"]), {"extra_args"}, decode);
    }
    // White space and order too: without its new member, the decode body is the client's.
    if (!generate && members_of(body).count("kv_transfer_params") == 0) {
      auto stripped = decode;
      const auto added = R"("kv_transfer_params":)" + kHandoff;
      const auto at = stripped.find(added);
      ASSERT_NE(at, std::string::npos);
      const bool comma = at > 0 && stripped[at - 1] == ',';
      stripped.erase(comma ? at - 1 : at, added.size() + (comma ? 1 : 0));
      EXPECT_EQ(stripped, body);
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(disaggregated, 1000);
}

INSTANTIATE_TEST_SUITE_P(Paths, VllmLegBodyProperty,
                         ::testing::Values(kChat, kCompletions, kResponses, kMessages, kGenerate));

}  // namespace
}  // namespace handoff::plugin_test
