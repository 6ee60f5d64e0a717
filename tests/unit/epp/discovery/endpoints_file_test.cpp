#include "epp/discovery/endpoints_file.hpp"

#include <gtest/gtest.h>

#include <string>

#include "epp/discovery/worker_id.hpp"

namespace handoff::epp {
namespace {

std::vector<FileEndpoint> good(std::string_view text) {
  auto parsed = parse_endpoints_file(text);
  if (const auto* error = std::get_if<EndpointsFileError>(&parsed)) {
    ADD_FAILURE() << error->text;
    return {};
  }
  return std::get<std::vector<FileEndpoint>>(std::move(parsed));
}

std::string error_of(std::string_view text) {
  auto parsed = parse_endpoints_file(text);
  const auto* error = std::get_if<EndpointsFileError>(&parsed);
  return error ? error->text : "";
}

// One endpoint with these further lines.
std::string one(const std::string& more) {
  return "endpoints:\n  - name: a\n    address: 10.0.0.1\n    port: 8000\n" + more;
}

TEST(EndpointsFile, ReadsEveryKey) {
  const auto found = good(
      "endpoints:\n"
      "  - name: prefill-0\n    address: 127.0.0.1\n    port: 8000\n    role: prefill\n"
      "    kv_event_port: 5557\n    kv_replay_port: 5558\n    data_parallel_size: 2\n    kv_events: false\n"
      "    health_path: /ready\n    labels: {zone: a, \"x/y\": \"1\"}\n"
      "  - {name: decode-0, address: \"fd00::1\", port: \"9000\", role: decode}\n"
      "  - {name: named, address: engine.example, port: 1}\n");
  ASSERT_EQ(found.size(), 3U);
  const Endpoint& first = found[0].endpoint;
  EXPECT_EQ(first.name, "prefill-0");
  EXPECT_EQ(first.worker_id, worker_id_of("prefill-0"));
  EXPECT_EQ(first.address, "127.0.0.1");
  EXPECT_EQ(first.port, 8000);
  EXPECT_EQ(first.role, EndpointRole::kPrefill);
  EXPECT_EQ(first.kv_event_port, 5557);
  EXPECT_EQ(first.kv_replay_port, 5558);
  EXPECT_EQ(first.data_parallel_size, 2U);
  EXPECT_FALSE(first.kv_events);
  EXPECT_EQ(first.labels, (std::map<std::string, std::string>{{"zone", "a"}, {"x/y", "1"}}));
  EXPECT_EQ(found[0].health_path, "/ready");
  EXPECT_FALSE(found[0].is_name);
  EXPECT_EQ(found[1].endpoint.role, EndpointRole::kDecode);
  EXPECT_TRUE(found[1].endpoint.kv_events);
  EXPECT_EQ(found[1].endpoint.data_parallel_size, 1U);
  EXPECT_FALSE(found[1].endpoint.kv_event_port);
  EXPECT_EQ(found[1].health_path, "/health");
  EXPECT_FALSE(found[1].is_name);
  EXPECT_TRUE(found[2].is_name);
  EXPECT_FALSE(found[2].endpoint.role);
}

TEST(EndpointsFile, MayListNone) {
  EXPECT_TRUE(good("endpoints: []").empty());
}

TEST(EndpointsFile, RefusesWhatItDoesNotUnderstandAndSaysWhere) {
  const struct {
    std::string text;
    const char* said;  // part of the message
  } rows[] = {
      {"", "endpoints"},
      {"[]", "endpoints"},
      {"endpoints: 3", "endpoints: must be a list"},
      {"endpoint: []", "unknown key 'endpoint'"},
      {"endpoints: []\nmore: 1", "unknown key 'more' (line 2); accepted: endpoints"},
      {"endpoints: [", "not YAML"},
      {"endpoints: []\nendpoints: []\n", "endpoints (line 2): given twice"},
      {"endpoints: []\n---\nendpoints: []\n", "has a second YAML document (line 2)"},
      {"endpoints: [3]", "endpoints[0] (line 1): must be a map"},
      {one("    ports: 3\n"), "endpoints[0]: unknown key 'ports' (line 5); accepted: name, address"},
      {one("    port: 8001\n"), "endpoints[0].port (line 5): given twice"},
      {"endpoints:\n  - name: a\n", "address is missing"},
      {one("    role: both\n"), "endpoints[0].role (line 5): 'both'; accepted: prefill or decode"},
      {one("    kv_event_port: 65536\n"), "'65536'; accepted: a whole number from 1 to 65535"},
      {one("    kv_event_port: 0x10\n"), "accepted: a whole number"},
      {one("    kv_replay_port: [1]\n"), "a list or map; accepted: a whole number"},
      {one("    data_parallel_size: 0\n"), "from 1 to 1024"},
      {one("    data_parallel_size: 9\n    kv_event_port: 65530\n"), "end above 65535"},
      {one("    data_parallel_size: 2\n    kv_event_port: 5557\n    kv_replay_port: 5558\n"),
       "2 or more apart"},
      {one("    data_parallel_size: 8\n    kv_event_port: 5564\n    kv_replay_port: 5557\n"),
       "8 or more apart"},
      {one("    kv_event_port: 5557\n    kv_replay_port: 5557\n"), "1 or more apart"},
      {one("    kv_events: 1\n"), "accepted: true or false"},
      {one("    health_path: ready\n"), "accepted: a path"},
      {one("    health_path: \"/a b\"\n"), "accepted: a path"},
      {one("    labels: [a]\n"), "labels (line 5): must be a map"},
      {one("    labels: {a: x, b: y, a: x}\n"), "labels (line 5): 'a' is given twice"},
      {one("    labels: {a: [1]}\n"), "labels.a (line 5): must be one value"},
      {one("  - {name: a, address: 10.0.0.2, port: 1}\n"), "'a' is the name of endpoints[0]"},
      {one("  - {name: b, address: 10.0.0.1, port: 8000}\n"), "address and port are those of endpoints[0]"},
      {one("  - {name: b, address: \"::ffff:10.0.0.1\", port: 8000}\n"), "are those of endpoints[0]"},
      {"endpoints: [{name: a, address: \"fd00::1\", port: 1}, {name: b, address: \"FD00:0:0::1\", port: 1}]",
       "are those of endpoints[0]"},
      {"endpoints: [{name: a, address: 10.0.0.256, port: 1}]", "endpoints[0].address"},
      {"endpoints: [{name: a, address: \"[::1]\", port: 1}]", "without brackets"},
      {"endpoints: [{name: a, address: \"http://x\", port: 1}]", "endpoints[0].address"},
      {"endpoints: [{name: a, address: \"x:1\", port: 1}]", "endpoints[0].address"},
      {"endpoints: [{name: \"a b\", address: x, port: 1}]", "endpoints[0].name"},
      {"endpoints: [{name: a, address: x, port: -1}]", "'-1'"},
      {"endpoints: [{name: a, address: x, port: }]", "endpoints[0].port"},
  };
  for (const auto& row : rows) {
    EXPECT_NE(error_of(row.text).find(row.said), std::string::npos)
        << row.text << "\n -> " << error_of(row.text);
  }
}

TEST(EndpointsFile, ReportsAllProblemsButNotEndlessly) {
  std::string text = "endpoints:\n";
  for (int i = 0; i < 12; ++i) text += "  - {name: n" + std::to_string(i) + ", address: x, port: 0}\n";
  const std::string error = error_of(text);
  EXPECT_NE(error.find("endpoints[9]"), std::string::npos);
  EXPECT_EQ(error.find("endpoints[10]"), std::string::npos);
  EXPECT_NE(error.find("and 2 more"), std::string::npos);
}

TEST(EndpointsFile, SurvivesHostileText) {
  EXPECT_EQ(error_of(std::string(100'000, '[')),
            "has lists and maps within each other more than 16 deep (line 1)");
  EXPECT_NE(error_of("endpoints: &a [*a]"), "");
  EXPECT_EQ(error_of(","), "has a second YAML document (line 1)") << "the parser itself finds no end";
  EXPECT_NE(error_of(std::string("endpoints: [{name: \"\x01\xff\", address: x, port: 1}]")), "");
  EXPECT_EQ(error_of("endpoints: [{name: \"\x01\xff\", address: x, port: 1}]").find('\x01'),
            std::string::npos);
  EXPECT_NE(error_of(std::string(kMaxEndpointsFileBytes + 1, ' ')).find("larger"), std::string::npos);
}

TEST(EndpointsFile, BoundsWhatAliasesStandFor) {
  std::string text = "endpoints:\n";
  for (int i = 0; i < 2000; ++i) {
    text += "  - name: n" + std::to_string(i) + "\n    address: x\n    port: " + std::to_string(i + 1) + "\n";
    text += i > 0 ? "    labels: *l\n" : "    labels: &l\n      a: " + std::string(1000, 'a') + "\n";
  }
  EXPECT_EQ(error_of(text), "") << "two megabytes";
  for (char key = 'b'; key <= 'k'; ++key) {
    text.insert(text.find("      a: "), "      " + (key + (": " + std::string(1000, 'a') + "\n")));
  }
  EXPECT_EQ(error_of(text), "labels: more than 8388608 bytes in all");
}

}  // namespace
}  // namespace handoff::epp
