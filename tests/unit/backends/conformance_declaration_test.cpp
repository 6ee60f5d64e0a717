// Rules for every plugin: what it declares and how it is created. Written against decode_backend.h.
#include <algorithm>
#include <set>
#include <sstream>

#include "tests/unit/backends/conformance_case.hpp"

namespace handoff::plugin_test {
namespace {

std::string text(handoff_bytes bytes) {
  return bytes.size == 0 ? "" : std::string(bytes.data, bytes.size);
}

std::vector<std::string> choices(const handoff_config_key& key) {
  std::vector<std::string> out;
  std::istringstream list(text(key.accepts));
  for (std::string item; std::getline(list, item, ',');) out.push_back(item);
  return out;
}

class ConformanceDeclaration : public Conformance {};

TEST_P(ConformanceDeclaration, HasAllEntries) {
  EXPECT_EQ(api().struct_size, sizeof(handoff_backend_api));
  EXPECT_NE(api().create, nullptr);
  EXPECT_NE(api().destroy, nullptr);
  EXPECT_NE(api().begin, nullptr);
  EXPECT_NE(api().event, nullptr);
  EXPECT_NE(api().end, nullptr);
  EXPECT_FALSE(text(api().name).empty());
  EXPECT_FALSE(text(api().protocol).empty());
  EXPECT_GT(api().engine_idle_ms, 0U);
  EXPECT_GT(api().health_interval_ms, 0U);
  EXPECT_EQ(text(api().health_path).substr(0, 1), "/");
}

TEST_P(ConformanceDeclaration, RoutesAreDistinctAndWithoutQuery) {
  std::set<std::string> seen;
  ASSERT_GT(api().route_count, 0U);
  for (std::size_t i = 0; i < api().route_count; ++i) {
    const auto path = text(api().routes[i].path);
    EXPECT_EQ(path.substr(0, 1), "/");
    EXPECT_EQ(path.find_first_of("?#% "), std::string::npos) << path;
    EXPECT_TRUE(seen.insert(text(api().routes[i].method) + " " + path).second) << path;
  }
}

TEST_P(ConformanceDeclaration, ReservedFieldsHaveOneToFourNames) {
  for (std::size_t i = 0; i < api().reserved_field_count; ++i) {
    const auto path = text(api().reserved_fields[i].path);
    EXPECT_FALSE(path.empty());
    EXPECT_LE(std::count(path.begin(), path.end(), '.'), 3) << path;
    EXPECT_EQ(("." + path + ".").find(".."), std::string::npos) << path;
  }
}

TEST_P(ConformanceDeclaration, EveryDefaultIsAccepted) {
  for (std::size_t i = 0; i < api().config_key_count; ++i) {
    const auto& key = api().config_keys[i];
    EXPECT_FALSE(text(key.name).empty());
    EXPECT_FALSE(text(key.help).empty()) << text(key.name);
    if (key.kind != HANDOFF_CONFIG_CHOICE) continue;
    const auto accepted = choices(key);
    EXPECT_FALSE(accepted.empty()) << text(key.name);
    if (key.default_value.size == 0) continue;
    EXPECT_NE(std::find(accepted.begin(), accepted.end(), text(key.default_value)), accepted.end())
        << text(key.name);
  }
}

TEST_P(ConformanceDeclaration, StartsWithDefaults) {
  EXPECT_TRUE(backend_.created()) << backend_.error();
}

TEST_P(ConformanceDeclaration, StartsWithEveryChoice) {
  for (std::size_t i = 0; i < api().config_key_count; ++i) {
    const auto& key = api().config_keys[i];
    if (key.kind != HANDOFF_CONFIG_CHOICE) continue;
    for (const auto& choice : choices(key)) {
      const Backend backend(plugin_, host_, {{text(key.name), choice}});
      // A choice may need another setting too; then the refusal has to name this one.
      EXPECT_TRUE(backend.created() || backend.error().find(text(key.name)) != std::string::npos)
          << text(key.name) << "=" << choice << ": " << backend.error();
    }
  }
}

TEST_P(ConformanceDeclaration, TwoBackendsLiveSideBySide) {
  // One per event loop, from one library.
  const Backend second(plugin_, host_);
  EXPECT_TRUE(second.created());
}

INSTANTIATE_TEST_SUITE_P(conformance, ConformanceDeclaration, ::testing::ValuesIn(plugin_variants()),
                         variant_label);

}  // namespace
}  // namespace handoff::plugin_test
