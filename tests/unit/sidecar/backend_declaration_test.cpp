#include "sidecar/backend_declaration.hpp"

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sidecar {
namespace {

using sdk::bytes;
using testing::HasSubstr;

/// A sound declaration, with room for a test to spoil it.
struct Declared {
  std::array<handoff_route, 2> routes{
      {{bytes("POST"), bytes("/v1/completions")}, {bytes("GET"), bytes("/a-b.c~d")}}};
  std::array<handoff_reserved_field, 2> reserved_fields{{{bytes("kv_transfer_params")}, {bytes("a.b.c.d")}}};
  std::array<handoff_config_key, 2> config_keys{{
      {bytes("DYN_SIDECAR_X_MODE"), bytes("fast,safe"), bytes("safe"), bytes("Mode."), HANDOFF_CONFIG_CHOICE,
       0},
      {bytes("X_KEY_2"), {}, {}, bytes("Key."), HANDOFF_CONFIG_FILE, HANDOFF_CONFIG_SECRET},
  }};
  handoff_backend_api table{};

  Declared() {
    table.name = bytes("my_engine-2");
    table.protocol = bytes("my-engine-v1.2");
    table.routes = routes.data();
    table.route_count = routes.size();
    table.reserved_fields = reserved_fields.data();
    table.reserved_field_count = reserved_fields.size();
    table.config_keys = config_keys.data();
    table.config_key_count = config_keys.size();
    table.health_path = bytes("/health?quick=1");
    table.health_interval_ms = 1000;
  }
};

TEST(BackendDeclaration, AcceptsSoundOnes) {
  EXPECT_EQ(find_declaration_problem(Declared().table), "");
}

TEST(BackendDeclaration, NeedsNoArrays) {
  Declared declared;
  declared.table.routes = nullptr;
  declared.table.reserved_fields = nullptr;
  declared.table.config_keys = nullptr;
  declared.table.route_count = declared.table.reserved_field_count = declared.table.config_key_count = 0;
  EXPECT_EQ(find_declaration_problem(declared.table), "");
}

struct Defect {
  const char* why;
  std::function<void(Declared&)> spoil;
  const char* message;
};
std::ostream& operator<<(std::ostream& out, const Defect& defect) {
  return out << defect.why;
}

class BackendDeclarationDefect : public testing::TestWithParam<Defect> {};

TEST_P(BackendDeclarationDefect, IsNamed) {
  Declared declared;
  GetParam().spoil(declared);
  EXPECT_THAT(find_declaration_problem(declared.table), HasSubstr(GetParam().message));
}

const std::string kLongName(33, 'n');
const std::string kLongKey(65, 'K');
const std::string kLongText(5000, 't');

INSTANTIATE_TEST_SUITE_P(
    Table, BackendDeclarationDefect,
    testing::Values(
        Defect{"empty name", [](auto& d) { d.table.name = {}; }, "name is empty"},
        Defect{"upper case", [](auto& d) { d.table.name = bytes("VLLM"); },
               "name \"VLLM\" must be at most 32"},
        Defect{"long name", [](auto& d) { d.table.name = bytes(kLongName); }, "must be at most 32"},
        Defect{"name points nowhere",
               [](auto& d) {
                 d.table.name = {nullptr, 4};
               },
               "name or protocol is NULL"},
        Defect{"line break in protocol", [](auto& d) { d.table.protocol = bytes("v1\n2"); },
               "protocol \"v1?2\""},

        Defect{"absurd count", [](auto& d) { d.table.route_count = 1u << 30; },
               "routes has 1073741824 entries, at most 64"},
        Defect{"no array", [](auto& d) { d.table.routes = nullptr; }, "routes is NULL, but its count is 2"},
        Defect{"no method", [](auto& d) { d.routes[1].method = {}; }, "routes[1]: the method is empty"},
        Defect{"no token", [](auto& d) { d.routes[0].method = bytes("PO ST"); },
               "routes[0]: \"PO ST\" is not an HTTP method"},
        Defect{"relative path", [](auto& d) { d.routes[1].path = bytes("v1/x"); },
               "routes[1]: the path \"v1/x\" does not begin with '/'"},
        Defect{"no path", [](auto& d) { d.routes[1].path = {}; }, "the path \"\" does not begin with '/'"},
        Defect{"query", [](auto& d) { d.routes[1].path = bytes("/x?y"); }, "the path \"/x?y\" contains"},
        Defect{"space", [](auto& d) { d.routes[1].path = bytes("/x y"); }, "the path \"/x y\" contains"},
        Defect{"twice", [](auto& d) { d.routes[1] = d.routes[0]; },
               "routes[1]: POST /v1/completions is declared twice"},
        Defect{"long path", [](auto& d) { d.routes[1].path = bytes(kLongText); }, "too long"},

        Defect{"empty field", [](auto& d) { d.reserved_fields[0].path = {}; },
               "reserved_fields[0]: \"\" contains an empty name"},
        Defect{"double dot", [](auto& d) { d.reserved_fields[1].path = bytes("a..b"); }, "empty name"},
        Defect{"ends in dot", [](auto& d) { d.reserved_fields[1].path = bytes("a."); }, "empty name"},
        Defect{"too deep", [](auto& d) { d.reserved_fields[1].path = bytes("a.b.c.d.e"); },
               "\"a.b.c.d.e\" is deeper than 4 names"},
        Defect{"blank", [](auto& d) { d.reserved_fields[1].path = bytes("a b"); }, "contains a space"},
        Defect{"many fields", [](auto& d) { d.table.reserved_field_count = 65; }, "reserved_fields has 65"},

        Defect{"key in lower case", [](auto& d) { d.config_keys[0].name = bytes("dyn_x"); },
               "config_keys[0]: the name \"dyn_x\" must be 1 to 64 of A-Z"},
        Defect{"key begins with a digit", [](auto& d) { d.config_keys[0].name = bytes("1X"); },
               "must be 1 to 64"},
        Defect{"long key", [](auto& d) { d.config_keys[0].name = bytes(kLongKey); }, "must be 1 to 64"},
        Defect{"kind", [](auto& d) { d.config_keys[1].kind = 99; },
               "config_keys[1] (X_KEY_2): kind 99 is unknown"},
        Defect{"flags", [](auto& d) { d.config_keys[1].flags = 6; }, "flags 6 are unknown"},
        Defect{"choice of nothing", [](auto& d) { d.config_keys[0].accepts = {}; }, "needs the values"},
        Defect{"same key", [](auto& d) { d.config_keys[1].name = d.config_keys[0].name; },
               "config_keys[1]: DYN_SIDECAR_X_MODE is declared twice"},
        Defect{"many keys", [](auto& d) { d.table.config_key_count = 65; }, "config_keys has 65"},

        Defect{"flags of the backend", [](auto& d) { d.table.flags = 2; }, "flags 2 are unknown"},

        Defect{"no health path", [](auto& d) { d.table.health_path = {}; },
               "health_path \"\" must begin with '/'"},
        Defect{"bad health path", [](auto& d) { d.table.health_path = bytes("/he alth"); },
               "health_path \"/he alth\" must"},
        Defect{"busy polling", [](auto& d) { d.table.health_interval_ms = 0; }, "health_interval_ms is 0"},
        Defect{"never polling", [](auto& d) { d.table.health_interval_ms = 0xffffffff; },
               "health_interval_ms is 4294967295"}));

TEST(Printable, KeepsTextOnOneLineAndShort) {
  EXPECT_EQ(printable("plain ~ text"), "plain ~ text");
  EXPECT_EQ(printable("a\r\nb\x1b[0m\xc3\xa9"), "a??b?[0m??");
  EXPECT_EQ(printable(std::string(300, 'x')), std::string(200, 'x') + "...");
}

}  // namespace
}  // namespace handoff::sidecar
