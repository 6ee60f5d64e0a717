#include "shared/config/option_table.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace handoff::config {
namespace {

using Pairs = Environment::Variables;
using Arguments = std::vector<std::string>;

enum class Policy { error, decode_only };

struct Settings {
  std::uint16_t port = 8000;
  std::uint16_t admin_port = 9091;
  std::string backend = "none";
  std::chrono::milliseconds timeout{10'000};
  std::uint64_t limit = 1024;
  bool trusted = false;
  Policy policy = Policy::error;
  std::vector<std::string> allowlist;
  std::optional<std::string> key;
};

std::vector<Alias> backend_aliases() {
  return {{.name = "DYN_SIDECAR_PD_ADAPTER", .spellings = {{"vllm_nixl", "vllm"}, {"none", ""}}},
          {.name = "DYN_SIDECAR_PD_BACKEND", .spellings = {{"sglang", "sglang"}, {"unavailable", ""}}},
          {.name = "DYN_ADAPTER_MODE", .spellings = {{"trtllm-context-first", "trtllm"}}, .any_case = true}};
}

class OptionTableTest : public ::testing::Test {
 protected:
  OptionTableTest() {
    table.section("Listener");
    table.add({.name = "DYN_SIDECAR_PORT", .help = "Port."}, settings.port, port());
    table.add({.name = "DYN_SIDECAR_ADMIN_PORT", .help = "Admin."}, settings.admin_port,
              port(ZeroPort::allowed));
    table.add({.name = "DYN_SIDECAR_BACKEND", .help = "Plugin.", .aliases = backend_aliases()},
              settings.backend, text());
    table.section("Limits");
    table.add({.name = "DYN_SIDECAR_CONNECT_TIMEOUT_MS", .help = "Connect."}, settings.timeout,
              milliseconds());
    table.add(
        {.name = "DYN_SIDECAR_MAX_REQUEST_BYTES", .help = "Body.", .aliases = {{.name = "DYN_MAX_BODY"}}},
        settings.limit, byte_count());
    table.add({.name = "DYN_SIDECAR_TRUSTED", .help = "Trust."}, settings.trusted, boolean());
    table.add({.name = "DYN_SIDECAR_POLICY", .help = "Policy."}, settings.policy,
              choice<Policy>({{"error", Policy::error}, {"decode-only", Policy::decode_only}}));
    table.add({.name = "DYN_SIDECAR_ALLOWLIST", .help = "Hosts."}, settings.allowlist, comma_list());
    table.add({.name = "DYN_SIDECAR_KEY",
               .help = "Secret.",
               .secret = true,
               .validate = [](std::string_view value) -> std::optional<std::string> {
                 return value.size() < 8 ? std::optional<std::string>("must have 8 characters")
                                         : std::nullopt;
               }},
              settings.key, text());
  }

  ParseResult parse(const Arguments& arguments, Pairs variables = {}) {
    return table.parse(arguments, Environment(std::move(variables)));
  }

  /// The one problem that is expected.
  std::string problem(const Arguments& arguments, Pairs variables = {}) {
    const auto result = parse(arguments, std::move(variables));
    EXPECT_EQ(result.problems.size(), 1U) << ::testing::PrintToString(result.problems);
    return result.problems.empty() ? "" : result.problems.front();
  }

  Settings settings;
  OptionTable table{{"DYN_SIDECAR_"}};
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TEST_F(OptionTableTest, KeepsDefaultsWithoutInput) {
  EXPECT_TRUE(parse({}).ok());
  EXPECT_EQ(settings.port, 8000);
  EXPECT_EQ(settings.key, std::nullopt);
}

TEST_F(OptionTableTest, ReadsTheEnvironment) {
  EXPECT_TRUE(parse({}, {{"DYN_SIDECAR_PORT", " 81 "},
                         {"DYN_SIDECAR_CONNECT_TIMEOUT_MS", "5"},
                         {"DYN_SIDECAR_MAX_REQUEST_BYTES", "2MiB"},
                         {"DYN_SIDECAR_TRUSTED", "yes"},
                         {"DYN_SIDECAR_POLICY", "decode-only"},
                         {"DYN_SIDECAR_ALLOWLIST", "a,.b"},
                         {"DYN_SIDECAR_KEY", "long enough"}})
                  .ok());
  EXPECT_EQ(settings.port, 81);
  EXPECT_EQ(settings.timeout, std::chrono::milliseconds(5));
  EXPECT_EQ(settings.limit, 2U << 20U);
  EXPECT_TRUE(settings.trusted);
  EXPECT_EQ(settings.policy, Policy::decode_only);
  EXPECT_EQ(settings.allowlist, (std::vector<std::string>{"a", ".b"}));
  EXPECT_EQ(settings.key, "long enough");
}

TEST_F(OptionTableTest, EmptyEnvironmentValueIsUnset) {
  EXPECT_TRUE(parse({}, {{"DYN_SIDECAR_PORT", ""}, {"DYN_SIDECAR_POLICY", "  "}}).ok());
  EXPECT_EQ(settings.port, 8000);
}

TEST_F(OptionTableTest, FlagBeatsEnvironment) {
  EXPECT_TRUE(parse({"--port", "1", "--connect-timeout-ms=7"}, {{"DYN_SIDECAR_PORT", "2"}}).ok());
  EXPECT_EQ(settings.port, 1);
  EXPECT_EQ(settings.timeout, std::chrono::milliseconds(7));
}

TEST_F(OptionTableTest, ABadEnvironmentValueDoesNotMatterUnderAFlag) {
  EXPECT_TRUE(parse({"--port=1"}, {{"DYN_SIDECAR_PORT", "nonsense"}}).ok());
}

TEST_F(OptionTableTest, LastOfRepeatedFlagsWins) {
  EXPECT_TRUE(parse({"--port=1", "--port=2"}).ok());
  EXPECT_EQ(settings.port, 2);
}

TEST_F(OptionTableTest, ASwitchNeedsNoValue) {
  EXPECT_TRUE(parse({"--trusted", "--port", "1"}).ok());
  EXPECT_TRUE(settings.trusted);
  EXPECT_TRUE(parse({"--trusted", "false"}).ok());
  EXPECT_FALSE(settings.trusted);
}

TEST_F(OptionTableTest, FlagNamesDropTheProgramsPrefix) {
  std::uint16_t decode = 1;
  std::uint16_t epp = 2;
  std::uint16_t other = 3;
  table.add({.name = "DYN_DECODE_ENGINE_PORT", .help = ""}, decode, port());
  table.add({.name = "DYN_EPP_GRPC_PORT", .help = ""}, epp, port());
  table.add({.name = "SGLANG_BOOTSTRAP_PORT", .help = ""}, other, port());
  EXPECT_TRUE(parse({"--decode-engine-port=11", "--grpc-port=12", "--sglang-bootstrap-port=13"}).ok());
  EXPECT_EQ(decode, 11);
  EXPECT_EQ(epp, 12);
  EXPECT_EQ(other, 13);
}

TEST_F(OptionTableTest, EveryKindRefusesABadValueAndNamesSettingSourceAndRule) {
  struct Row {
    const char* name;
    const char* value;
    const char* accepts;
  };
  const Row rows[] = {
      {"DYN_SIDECAR_PORT", "0", "a port from 1 to 65535"},
      {"DYN_SIDECAR_ADMIN_PORT", "70000", "a port from 0 to 65535"},
      {"DYN_SIDECAR_CONNECT_TIMEOUT_MS", "0", "milliseconds from 1"},
      {"DYN_SIDECAR_MAX_REQUEST_BYTES", "lots", "a whole number of bytes"},
      {"DYN_SIDECAR_TRUSTED", "maybe", "true or false"},
      {"DYN_SIDECAR_POLICY", "Error", "one of error, decode-only"},
      {"DYN_SIDECAR_ALLOWLIST", "a,,b", "separated by commas"},
  };
  for (const Row& row : rows) {
    const std::string text = problem({}, {{row.name, row.value}});
    EXPECT_TRUE(contains(text, std::string(row.name) + " (environment variable) does not accept")) << text;
    EXPECT_TRUE(contains(text, '"' + std::string(row.value) + '"')) << text;
    EXPECT_TRUE(contains(text, row.accepts)) << text;
  }
  EXPECT_TRUE(contains(problem({"--port=x"}), "DYN_SIDECAR_PORT (--port)"));
}

TEST_F(OptionTableTest, ReportsAllProblemsAtOnceAndKeepsTheFields) {
  const auto result =
      parse({"stray", "--port=x", "--nonsense"},
            {{"DYN_SIDECAR_POLICY", "?"}, {"DYN_SIDECAR_KEY", "short"}, {"DYN_ADAPTER_MODE", "?"}});
  EXPECT_EQ(result.problems.size(), 6U) << ::testing::PrintToString(result.problems);
  EXPECT_EQ(settings.port, 8000);
  EXPECT_EQ(settings.policy, Policy::error);
  EXPECT_EQ(settings.key, std::nullopt);
}

TEST_F(OptionTableTest, RefusesNonUtf8) {
  EXPECT_TRUE(contains(problem({}, {{"DYN_SIDECAR_BACKEND", "v\xFF"}}), "is not UTF-8"));
}

TEST_F(OptionTableTest, UnknownFlagGetsASuggestion) {
  EXPECT_EQ(problem({"--prt=1"}), "--prt is unknown; did you mean --port?");
  EXPECT_EQ(problem({"--absolutely-else", "value"}), "--absolutely-else is unknown");
  EXPECT_EQ(problem({"--hepl"}), "--hepl is unknown; did you mean --help?");
}

TEST_F(OptionTableTest, AFlagWithoutItsValueIsAProblem) {
  EXPECT_TRUE(contains(problem({"--port"}), "DYN_SIDECAR_PORT (--port) has no value"));
  EXPECT_TRUE(contains(problem({"--port="}), "a port from 1"));
}

TEST_F(OptionTableTest, WarnsOfUnknownNamesUnderOurPrefixOnly) {
  const auto result =
      parse({}, {{"DYN_SIDECAR_PRT", "1"}, {"DYN_OTHER", "1"}, {"DYN_SIDECAR_PD_ADAPTER", "none"}});
  EXPECT_TRUE(result.ok());
  ASSERT_EQ(result.warnings.size(), 1U);
  EXPECT_TRUE(contains(result.warnings[0], "DYN_SIDECAR_PRT"));
  EXPECT_TRUE(contains(result.warnings[0], "did you mean DYN_SIDECAR_PORT?"));
}

// Prefixes of ours, other people's names, and names of ours without our prefix are all in one environment.
TEST_F(OptionTableTest, WarnsOfANameThatIsAllButOneOfOurs) {
  const auto result = parse({}, {{"DYN_SIDECR_PORT", "1"},
                                 {"DYN_SIDE_CAR_ADMINPORT", "1"},
                                 {"SIDECAR_PORT", "1"},
                                 {"XYN_SIDECAR_PORT", "1"},
                                 {"PATH", "1"}});
  EXPECT_TRUE(result.ok());
  ASSERT_EQ(result.warnings.size(), 2U);
  const std::string both = result.warnings[0] + result.warnings[1];
  EXPECT_TRUE(contains(both, "DYN_SIDECR_PORT is ignored; did you mean DYN_SIDECAR_PORT?")) << both;
  EXPECT_TRUE(contains(both, "DYN_SIDE_CAR_ADMINPORT is ignored; did you mean DYN_SIDECAR_ADMIN_PORT?"))
      << both;
}

TEST_F(OptionTableTest, ExplainsServiceLinks) {
  const std::string text = problem({}, {{"DYN_SIDECAR_PORT", "tcp://10.0.0.1:8000"}});
  EXPECT_TRUE(contains(text, "Service of that name")) << text;
  EXPECT_TRUE(contains(text, "enableServiceLinks: false")) << text;
  const auto result =
      parse({}, {{"DYN_SIDECAR_SERVICE_HOST", "10.0.0.1"}, {"DYN_SIDECAR_PORT_8000_TCP", "tcp://x"}});
  EXPECT_TRUE(result.ok());
  ASSERT_EQ(result.warnings.size(), 2U);
  EXPECT_TRUE(contains(result.warnings[0], "enableServiceLinks"));
}

TEST_F(OptionTableTest, AliasesTranslateTheirSpellings) {
  EXPECT_TRUE(parse({}, {{"DYN_SIDECAR_PD_ADAPTER", "vllm_nixl"}}).ok());
  EXPECT_EQ(settings.backend, "vllm");
  EXPECT_TRUE(parse({}, {{"DYN_ADAPTER_MODE", "TRTLLM-Context-First"}}).ok());
  EXPECT_EQ(settings.backend, "trtllm");
  EXPECT_TRUE(parse({}, {{"DYN_MAX_BODY", "1KiB"}}).ok());
  EXPECT_EQ(settings.limit, 1024U);
}

TEST_F(OptionTableTest, AnAliasRefusesSpellingsItDoesNotHave) {
  const std::string text = problem({}, {{"DYN_SIDECAR_PD_BACKEND", "SGLang"}});
  EXPECT_TRUE(contains(text, "DYN_SIDECAR_PD_BACKEND")) << text;
  EXPECT_TRUE(contains(text, "sglang, unavailable")) << text;
}

TEST_F(OptionTableTest, DisagreeingAliasesAreAProblem) {
  const std::string text =
      problem({}, {{"DYN_SIDECAR_PD_ADAPTER", "vllm_nixl"}, {"DYN_SIDECAR_PD_BACKEND", "sglang"}});
  EXPECT_TRUE(contains(text, "DYN_SIDECAR_PD_ADAPTER")) << text;
  EXPECT_TRUE(contains(text, "DYN_SIDECAR_PD_BACKEND")) << text;
}

TEST_F(OptionTableTest, AnAliasThatMeansUnsetDisagreesWithNobody) {
  EXPECT_TRUE(parse({}, {{"DYN_SIDECAR_PD_ADAPTER", "none"}, {"DYN_SIDECAR_PD_BACKEND", "sglang"}}).ok());
  EXPECT_EQ(settings.backend, "sglang");
}

TEST_F(OptionTableTest, TheMainNameWinsOverAliases) {
  EXPECT_TRUE(parse({}, {{"DYN_SIDECAR_BACKEND", "mine"},
                         {"DYN_SIDECAR_PD_ADAPTER", "vllm_nixl"},
                         {"DYN_SIDECAR_PD_BACKEND", "sglang"}})
                  .ok());
  EXPECT_EQ(settings.backend, "mine");
}

TEST_F(OptionTableTest, SecretsAreInNoMessage) {
  for (const auto& result : {parse({"--key=hunter2"}), parse({"--key=hun\xFFter2"}),
                             parse({"--key", "x", "hunter2"}), parse({}, {{"DYN_SIDECAR_KEY", "hunter2"}})}) {
    EXPECT_FALSE(result.ok());
    for (const auto& text : result.problems) EXPECT_FALSE(contains(text, "hun")) << text;
  }
  std::uint64_t number = 0;
  table.add({.name = "DYN_SIDECAR_PIN", .help = "", .secret = true}, number, whole_number());
  EXPECT_FALSE(contains(problem({"--pin=12ab"}), "12ab"));
}

TEST_F(OptionTableTest, ChecksSpanFields) {
  table.add_check([this]() -> std::optional<std::string> {
    if (settings.port != settings.admin_port) return std::nullopt;
    return "DYN_SIDECAR_PORT and DYN_SIDECAR_ADMIN_PORT must differ";
  });
  EXPECT_TRUE(parse({}).ok());
  EXPECT_TRUE(contains(problem({"--port=9091"}), "must differ"));
}

TEST_F(OptionTableTest, RecognisesRequests) {
  EXPECT_EQ(parse({}).request, Request::run);
  EXPECT_EQ(parse({"--help"}).request, Request::help);
  EXPECT_EQ(parse({"-h"}).request, Request::help);
  EXPECT_EQ(parse({"--version"}).request, Request::version);
  EXPECT_EQ(parse({"--print-config", "--port", "5"}).request, Request::print_config);
  EXPECT_EQ(parse({"--help", "--version"}).request, Request::help);
  EXPECT_EQ(settings.port, 5);
  EXPECT_TRUE(contains(problem({"--help=x"}), "takes no value"));
}

TEST_F(OptionTableTest, PeeksBeforeRowsAreAdded) {
  const Environment environment(Environment::Variables{{"DYN_SIDECAR_PD_ADAPTER", "vllm_nixl"}});
  const Arguments arguments = {"--vllm-connector", "nixl", "--port=bad"};
  EXPECT_EQ(table.peek("DYN_SIDECAR_BACKEND", arguments, environment), "vllm");
  EXPECT_EQ(table.peek("DYN_SIDECAR_BACKEND", {"--backend", "other"}, environment), "other");
  EXPECT_EQ(table.peek("DYN_SIDECAR_BACKEND", {}, Environment()), std::nullopt);
  EXPECT_THROW(table.peek("DYN_ABSENT", {}, Environment()), std::invalid_argument);
}

TEST_F(OptionTableTest, DeclaredOptionsGoToAMapInPlainSpelling) {
  DeclaredValues values;
  table.section("Plugin");
  table.add_declared({.name = "DYN_SIDECAR_VLLM_CONNECTOR", .help = "Connector."}, DeclaredKind::text, "nixl",
                     values);
  table.add_declared({.name = "DYN_SIDECAR_VLLM_LIMIT", .help = "Limit."}, DeclaredKind::byte_count, "1KiB",
                     values);
  table.add_declared({.name = "DYN_SIDECAR_VLLM_FLAG", .help = "Flag."}, DeclaredKind::boolean, "", values);
  EXPECT_EQ(values["DYN_SIDECAR_VLLM_CONNECTOR"], "nixl");
  EXPECT_EQ(values["DYN_SIDECAR_VLLM_LIMIT"], "1024");
  EXPECT_TRUE(parse({"--vllm-flag"}, {{"DYN_SIDECAR_VLLM_LIMIT", "2KiB"}}).ok());
  EXPECT_EQ(values["DYN_SIDECAR_VLLM_LIMIT"], "2048");
  EXPECT_EQ(values["DYN_SIDECAR_VLLM_FLAG"], "true");
  EXPECT_TRUE(contains(problem({"--vllm-limit=x"}), "whole number of bytes"));
}

TEST_F(OptionTableTest, WrongDeclarationsThrow) {
  std::uint16_t field = 1;
  DeclaredValues values;
  EXPECT_THROW(table.add({.name = "DYN_SIDECAR_PORT", .help = ""}, field, port()), std::invalid_argument);
  EXPECT_THROW(table.add({.name = "DYN_EPP_PORT", .help = ""}, field, port()), std::invalid_argument);
  EXPECT_THROW(table.add({.name = "DYN_ADAPTER_MODE", .help = ""}, field, port()), std::invalid_argument);
  EXPECT_THROW(table.add({.name = "lower", .help = ""}, field, port()), std::invalid_argument);
  EXPECT_THROW(table.add({.name = "DYN_HELP", .help = ""}, field, port()), std::invalid_argument);
  EXPECT_THROW(table.add_declared({.name = "DYN_X", .help = ""}, DeclaredKind::port, "0", values),
               std::invalid_argument);
}

// Of a required option there is one line, whatever is wrong with it.
TEST(RequiredOption, IsMissingOrRefusedButNotBoth) {
  std::string name;
  std::uint32_t size = 0;
  OptionTable table;
  table.add({.name = "DYN_NAME", .help = "Name.", .required = true}, name, text());
  table.add({.name = "DYN_SIZE", .help = "Size.", .required = true}, size, whole_number(1, 100));
  using Problems = std::vector<std::string>;
  EXPECT_EQ(table.parse({}, Environment()).problems,
            (Problems{"DYN_NAME is required", "DYN_SIZE is required"}));
  const auto refused = table.parse({"--name=", "--size"}, Environment()).problems;
  ASSERT_EQ(refused.size(), 2U);
  EXPECT_EQ(refused[0], "DYN_NAME is required");
  EXPECT_EQ(refused[1].find("DYN_SIZE (--size) has no value"), 0U) << refused[1];
  const auto zero = table.parse({"--name=x", "--size=0"}, Environment()).problems;
  ASSERT_EQ(zero.size(), 1U);
  EXPECT_NE(zero[0].find("does not accept \"0\""), std::string::npos);
  EXPECT_TRUE(table.parse({"--name=x", "--size=1"}, Environment()).ok());
}

}  // namespace
}  // namespace handoff::config
