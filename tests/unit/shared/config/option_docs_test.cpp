#include <gtest/gtest.h>

#include "shared/config/option_table.hpp"

namespace handoff::config {
namespace {

class OptionDocs : public ::testing::Test {
 protected:
  OptionDocs() {
    table.section("Listener");
    table.add(
        {.name = "DYN_SIDECAR_PORT", .help = "Port of the listener.", .aliases = {{.name = "DYN_OLD_PORT"}}},
        listen_port, port());
    table.section("Empty");
    table.section("Limits");
    table.add({.name = "DYN_SIDECAR_READ_TIMEOUT_MS", .help = "Either | or."}, timeout, milliseconds());
    table.add({.name = "DYN_SIDECAR_KEY", .help = "Key.", .secret = true}, key, text());
    table.add({.name = "DYN_SIDECAR_NAME", .help = "Name."}, name, text());
  }

  std::uint16_t listen_port = 8000;
  std::chrono::milliseconds timeout{300};
  std::string key = "built-in-key";
  std::string name;
  OptionTable table;
};

TEST_F(OptionDocs, PrintConfigShowsEffectiveValuesAndMasksSecrets) {
  ASSERT_TRUE(table
                  .parse({"--key=hunter2", "--name=a\nb"},
                         Environment(Environment::Variables{{"DYN_SIDECAR_PORT", "81"}}))
                  .ok());
  EXPECT_EQ(table.print_config(),
            "DYN_SIDECAR_PORT=81\n"
            "DYN_SIDECAR_READ_TIMEOUT_MS=300\n"
            "DYN_SIDECAR_KEY=***\n"
            "DYN_SIDECAR_NAME=a\\x0ab\n");
}

TEST_F(OptionDocs, MarkdownHasATablePerSection) {
  EXPECT_EQ(table.markdown_table(),
            "### Listener\n\n"
            "| Environment | Flag | Default | Accepts | Meaning |\n|---|---|---|---|---|\n"
            "| `DYN_SIDECAR_PORT`, `DYN_OLD_PORT` | `--port` | `8000` | a port from 1 to 65535 | Port of the "
            "listener. |\n"
            "\n### Limits\n\n"
            "| Environment | Flag | Default | Accepts | Meaning |\n|---|---|---|---|---|\n"
            "| `DYN_SIDECAR_READ_TIMEOUT_MS` | `--read-timeout-ms` | `300` | a whole number of milliseconds "
            "from 1 to "
            "604800000 | Either \\| or. |\n"
            "| `DYN_SIDECAR_KEY` | `--key` | – | text | Key. |\n"
            "| `DYN_SIDECAR_NAME` | `--name` | – | text | Name. |\n");
}

TEST_F(OptionDocs, SayWhatTheWordsOfAnAliasStandFor) {
  OptionTable other;
  std::string backend;
  other.section("Backend");
  other.add(
      {.name = "DYN_SIDECAR_BACKEND",
       .help = "Plugin.",
       .aliases = {{.name = "DYN_OLD_BACKEND", .spellings = {{"none", ""}, {"nixl", "vllm"}, {"x", "x"}}}}},
      backend, text());
  EXPECT_NE(other.markdown_table().find("`DYN_OLD_BACKEND` (`none` = not set, `nixl` = `vllm`, `x`)"),
            std::string::npos);
  EXPECT_NE(other.help_text("sidecar").find("DYN_OLD_BACKEND (none = not set, nixl = vllm, x)"),
            std::string::npos);
}

TEST_F(OptionDocs, HelpNamesEveryFlagWithDefaultUnitAndEnvironment) {
  const std::string help = table.help_text("sidecar");
  EXPECT_EQ(help.find("Usage: sidecar"), 0U);
  for (const char* part :
       {"--print-config", "Listener:", "--port\n", "Port of the listener.", "Default: 8000.",
        "Default: 300 ms.", "Environment: DYN_SIDECAR_PORT, DYN_OLD_PORT"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(help.find("built-in-key"), std::string::npos);
  EXPECT_EQ(help.find("Empty"), std::string::npos);
}

// The docs are generated from declarations, not from what this process was started with.
TEST_F(OptionDocs, DefaultsDoNotFollowParsedValues) {
  const std::string before = table.markdown_table();
  ASSERT_TRUE(table.parse({"--port=1"}, Environment()).ok());
  EXPECT_EQ(table.markdown_table(), before);
}

}  // namespace
}  // namespace handoff::config
