#include "sidecar/backend_host.hpp"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "shared/backend_abi/backend_sdk.hpp"
#include "tests/plugins/stub_host.hpp"

namespace handoff::sidecar {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const BackendLoadError& error) {
    return error.what();
  }
  return "no error";
}

std::string load_error(const std::string& path) {
  return error_of([&] { load_backend(path); });
}

/// Our ABI version, or one that far above it.
std::string abi(unsigned major_above, unsigned minor_above) {
  return std::to_string(HANDOFF_ABI_MAJOR + major_above) + '.' +
         std::to_string(HANDOFF_ABI_MINOR + minor_above);
}

/// A plugin of tests/plugins/broken_backend.
std::string broken(const std::string& defect) {
  return resolve_backend_path(defect, BROKEN_BACKENDS);
}

class Directory {
 public:
  Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "handoff_backend_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    ::chmod(path_.c_str(), 0755);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// --- Names and paths
// -------------------------------------------------------------------------------------------

TEST(ResolveBackendPath, NameStandsForAFileInTheDirectory) {
  EXPECT_EQ(resolve_backend_path("vllm", "/opt/handoff"), "/opt/handoff/handoff_backend_vllm.so");
  EXPECT_EQ(resolve_backend_path("my_engine-2", "relative"), "relative/handoff_backend_my_engine-2.so");
}

TEST(ResolveBackendPath, DirectoryDefaultsToTheProgramsOwn) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  EXPECT_EQ(resolve_backend_path("vllm"), self + "/handoff_backend_vllm.so");
}

TEST(ResolveBackendPath, AnythingWithASlashIsAPath) {
  EXPECT_EQ(resolve_backend_path("/a/B c.so", "/opt"), "/a/B c.so");
  EXPECT_EQ(resolve_backend_path("./x.so", "/opt"), "./x.so");
}

TEST(ResolveBackendPath, RefusesOtherNames) {
  for (const std::string name : {"", "VLLM", "vllm.so", "..", "a b", "v\xc3\xa9", "x\ny"}) {
    EXPECT_THAT(error_of([&] { resolve_backend_path(name, "/opt"); }),
                HasSubstr("is not a backend: give a name"))
        << name;
  }
  const std::string with_nul("/a\0b", 4);
  EXPECT_THAT(error_of([&] { resolve_backend_path(with_nul); }), HasSubstr("contains a NUL"));
}

// --- Files that are no backends
// --------------------------------------------------------------------------------

TEST(LoadBackend, NamesTheNeighboursOfAFileThatDoesNotExist) {
  const Directory directory;
  const auto path = directory.path() + "/handoff_backend_vlm.so";
  EXPECT_EQ(load_error(path),
            "cannot load backend " + path + ": the file does not exist; no backend lies in that directory");
  directory.file("handoff_backend_vllm.so", "");
  directory.file("handoff_backend_sglang.so", "");
  directory.file("libother.so", "");
  EXPECT_THAT(load_error(path), HasSubstr("that directory has: sglang vllm"));
}

TEST(LoadBackend, RefusesAnEmptyFile) {
  const Directory directory;
  const auto path = directory.file("empty.so", "");
  EXPECT_EQ(load_error(path), "cannot load backend " + path + ": the file is empty");
}

TEST(LoadBackend, RefusesAFileThatIsNoSharedObject) {
  const Directory directory;
  for (const std::string content : {"#!/bin/sh\n", "\177EL", "\177elf and more"}) {
    const auto path = directory.file("text.so", content);
    EXPECT_EQ(load_error(path),
              "cannot load backend " + path + ": it is not a shared object (no ELF header)");
  }
}

// dlopen() would map it and die of SIGBUS.
TEST(LoadBackend, RefusesAFileThatWasCutOff) {
  const Directory directory;
  std::ifstream whole(broken("none"), std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(whole), {});
  for (const std::size_t size : {4u, 30u, 64u, 100u, 1000u, 3000u, 8000u}) {
    ASSERT_LT(size, content.size());
    const auto path = directory.file("cut.so", content.substr(0, size));
    EXPECT_THAT(load_error(path),
                StartsWith("cannot load backend " + path + ": the file is cut off: it has " +
                           std::to_string(size) + " bytes, at least "));
  }
}

TEST(LoadBackend, SaysWhatTheLoaderSaysOfAnotherMachinesObject) {
  const Directory directory;
  std::string content(100, '\0');
  content.replace(0, 5, "\177ELF\1");
  const auto path = directory.file("other.so", content);
  EXPECT_THAT(load_error(path), StartsWith("cannot load backend " + path + ": "));
}

TEST(LoadBackend, RefusesADirectory) {
  const Directory directory;
  EXPECT_EQ(load_error(directory.path()),
            "cannot load backend " + directory.path() + ": it is not a regular file");
}

TEST(LoadBackend, RefusesAnUnreadableFile) {
  const Directory directory;
  const auto path = directory.file("secret.so", "\177ELF");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  // Root reads everything: look at the file as somebody else.
  const bool root = ::geteuid() == 0;
  if (root && ::seteuid(65534) != 0) GTEST_SKIP() << "root, and can't become somebody else";
  const auto error = load_error(path);
  if (root && ::seteuid(0) != 0) FAIL() << "can't become root again";
  EXPECT_EQ(error, "cannot load backend " + path + ": the file can't be read: Permission denied");
}

// --- Shared objects with a defect
// ------------------------------------------------------------------------------

struct BrokenObject {
  const char* defect;
  std::string message;
};
std::ostream& operator<<(std::ostream& out, const BrokenObject& object) {
  return out << object.defect;
}

class LoadBrokenBackend : public testing::TestWithParam<BrokenObject> {};

TEST_P(LoadBrokenBackend, NamesFileAndReason) {
  const auto path = broken(GetParam().defect);
  EXPECT_THAT(load_error(path),
              AllOf(StartsWith("cannot load backend " + path + ": "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Defects, LoadBrokenBackend,
    testing::Values(
        BrokenObject{"wrong_major", "built for ABI " + abi(1, 0) + ", this sidecar has " + abi(0, 0) +
                                        "; rebuild it with this sidecar's headers"},
        BrokenObject{"newer_minor", "built for ABI " + abi(0, 7) + ", this sidecar has " + abi(0, 0) +
                                        "; upgrade the sidecar, or rebuild"},
        BrokenObject{"missing_symbol", "it does not export handoff_backend_get(); is it a backend"},
        BrokenObject{"truncated_table", "its table is truncated: struct_size is 144, at least 152 is needed"},
        BrokenObject{"null_entry", "the required entry event() is NULL"},
        BrokenObject{"entry_returns_null",
                     "handoff_backend_get() returned NULL: the backend can't work with this sidecar's ABI " +
                         abi(0, 0)},
        BrokenObject{"entry_throws", "handoff_backend_get() threw an exception: not in the mood"},
        BrokenObject{"unresolved_symbol", "undefined symbol: handoff_test_defined_nowhere"},
        BrokenObject{"bad_declaration",
                     "bad declaration: routes[0]: the path \"v1/completions\" does not begin with '/'"}),
    [](const auto& test) { return std::string(test.param.defect); });

class CreateBrokenBackend : public testing::TestWithParam<BrokenObject> {};

TEST_P(CreateBrokenBackend, NamesFileAndReason) {
  const auto path = broken(GetParam().defect);
  const auto backend = load_backend(path);
  const StubHost host;
  EXPECT_EQ(error_of([&] { backend.create_instance(host.api(), {}); }),
            "backend broken (" + path + ") can't start: " + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Defects, CreateBrokenBackend,
    testing::Values(BrokenObject{"create_throws", "create() threw an exception: no luck today"},
                    BrokenObject{"create_refuses", "the two settings contradict each other"},
                    BrokenObject{"create_refuses_silently", "create() returned status 1 without a reason"},
                    BrokenObject{"create_gives_nothing", "create() returned no instance"}),
    [](const auto& test) { return std::string(test.param.defect); });

TEST(BackendExchange, TurnsExceptionsIntoAStatus) {
  StubHost host;
  const auto& request = host.request("/v1/completions", "{}", true);
  const auto begins = load_backend(broken("begin_throws")).create_instance(host.api(), {});
  EXPECT_EQ(host.run(*begins, request), "begin returned 3\n");
  const auto events = load_backend(broken("event_throws")).create_instance(host.api(), {});
  EXPECT_EQ(host.run(*events, request), "event returned 3\n");
}

TEST(LoadBackend, LoadsASoundOneFromARelativePathToo) {
  const auto relative = std::filesystem::relative(broken("none")).string();
  EXPECT_EQ(load_backend(relative).name(), "broken");
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(BROKEN_BACKENDS);
  EXPECT_EQ(load_backend("handoff_backend_none.so").name(), "broken");
  std::filesystem::current_path(here);
}

// --- Declarations and calls, seen through a backend that is part of this program
// --------------------------------

/// Counts what it is called for, and records its settings.
struct Recorder {
  std::vector<std::string> settings;
  int begun = 0;
  int ended = 0;
  int destroyed = 0;
  handoff_status begin_status = HANDOFF_OK;
};
Recorder* recorder = nullptr;  // the test that runs; entries have no other way to reach it

constexpr handoff_route kRoutes[] = {{sdk::bytes("POST"), sdk::bytes("/generate")}};
constexpr handoff_reserved_field kReserved[] = {{sdk::bytes("bootstrap_room")}, {sdk::bytes("a.b")}};
constexpr handoff_config_key kKeys[] = {
    {sdk::bytes("X_TIMEOUT_MS"), sdk::bytes(""), sdk::bytes("5"), sdk::bytes("T."),
     HANDOFF_CONFIG_DURATION_MS, 0},
    {sdk::bytes("X_KEY"), {}, {}, sdk::bytes("K."), HANDOFF_CONFIG_STRING, HANDOFF_CONFIG_SECRET}};

handoff_backend_api recording_table() {
  handoff_backend_api table{};
  table.struct_size = sizeof(table);
  table.abi_major = HANDOFF_ABI_MAJOR;
  table.abi_minor = HANDOFF_ABI_MINOR;
  table.name = sdk::bytes("recorder");
  table.protocol = sdk::bytes("recorder-v2");
  table.routes = kRoutes;
  table.route_count = std::size(kRoutes);
  table.reserved_fields = kReserved;
  table.reserved_field_count = std::size(kReserved);
  table.config_keys = kKeys;
  table.config_key_count = std::size(kKeys);
  table.health_path = sdk::bytes("/health");
  table.health_interval_ms = 2000;
  table.engine_idle_ms = 900;
  table.create = [](const handoff_host_api*, const handoff_config* config, handoff_backend** out, char*,
                    std::size_t) {
    for (std::size_t i = 0; i < config->setting_count; ++i) {
      recorder->settings.push_back(std::string(sdk::view(config->settings[i].name)) + '=' +
                                   std::string(sdk::view(config->settings[i].value)));
    }
    *out = reinterpret_cast<handoff_backend*>(recorder);
    return HANDOFF_OK;
  };
  table.destroy = [](handoff_backend* backend) { ++reinterpret_cast<Recorder*>(backend)->destroyed; };
  table.begin = [](handoff_backend* backend, const handoff_request*, handoff_turn*, handoff_exchange** out) {
    auto* self = reinterpret_cast<Recorder*>(backend);
    if (self->begin_status != HANDOFF_OK) return self->begin_status;
    ++self->begun;
    *out = reinterpret_cast<handoff_exchange*>(self);
    return HANDOFF_OK;
  };
  table.event = [](handoff_exchange*, const handoff_event*, handoff_turn*) { return HANDOFF_OK; };
  table.end = [](handoff_exchange* exchange) { ++reinterpret_cast<Recorder*>(exchange)->ended; };
  return table;
}

const handoff_backend_api* served_table = nullptr;
const handoff_backend_api* serve_table(std::uint32_t, std::uint32_t) {
  return served_table;
}

class AdoptedBackend : public testing::Test {
 protected:
  void SetUp() override {
    recorder = &recorded_;
    served_table = &table_;
  }
  LoadedBackend adopt() { return adopt_backend(&serve_table, "built-in"); }

  Recorder recorded_;
  handoff_backend_api table_ = recording_table();
  StubHost host_;
  const std::vector<std::string> values_{"5", "hush"};
};

TEST_F(AdoptedBackend, ShowsWhatItDeclares) {
  const auto backend = adopt();
  EXPECT_EQ(backend.name(), "recorder");
  EXPECT_EQ(backend.protocol(), "recorder-v2");
  ASSERT_EQ(backend.routes().size(), 1u);
  EXPECT_EQ(backend.routes()[0].method, "POST");
  EXPECT_EQ(backend.routes()[0].path, "/generate");
  EXPECT_THAT(backend.reserved_fields(), ElementsAre("bootstrap_room", "a.b"));
  ASSERT_EQ(backend.config_keys().size(), 2u);
  EXPECT_EQ(backend.config_keys()[0].name, "X_TIMEOUT_MS");
  EXPECT_EQ(backend.config_keys()[0].default_value, "5");
  EXPECT_EQ(backend.config_keys()[0].help, "T.");
  EXPECT_EQ(backend.config_keys()[0].kind, HANDOFF_CONFIG_DURATION_MS);
  EXPECT_FALSE(backend.config_keys()[0].secret);
  EXPECT_TRUE(backend.config_keys()[1].secret);
  EXPECT_EQ(backend.health_path(), "/health");
  EXPECT_EQ(backend.health_interval_ms(), 2000u);
  EXPECT_EQ(backend.engine_idle_ms(), 900u);
  EXPECT_EQ(backend.describe(), "backend recorder, protocol recorder-v2, ABI " + abi(0, 0) + " (sidecar " +
                                    abi(0, 0) + "), built-in");
}

TEST_F(AdoptedBackend, MayHaveATableThatIsLongerThanOurs) {
  std::vector<char> longer(sizeof(table_) + 64, '\x55');
  table_.struct_size = static_cast<std::uint32_t>(longer.size());
  std::memcpy(longer.data(), &table_, sizeof(table_));
  served_table = reinterpret_cast<const handoff_backend_api*>(longer.data());
  EXPECT_EQ(adopt().name(), "recorder");
}

TEST_F(AdoptedBackend, EveryEntryIsRequired) {
  const std::vector<std::pair<const char*, std::function<void()>>> entries{
      {"create", [&] { table_.create = nullptr; }}, {"destroy", [&] { table_.destroy = nullptr; }},
      {"begin", [&] { table_.begin = nullptr; }},   {"event", [&] { table_.event = nullptr; }},
      {"end", [&] { table_.end = nullptr; }},
  };
  for (const auto& [name, clear] : entries) {
    table_ = recording_table();
    clear();
    EXPECT_EQ(error_of([&] { adopt(); }),
              std::string("cannot load backend built-in: the required entry ") + name + "() is NULL");
  }
}

TEST_F(AdoptedBackend, IsCreatedWithItsSettingsInOrder) {
  const auto instance = adopt().create_instance(host_.api(), values_);
  EXPECT_THAT(recorded_.settings, ElementsAre("X_TIMEOUT_MS=5", "X_KEY=hush"));
  EXPECT_THROW(adopt().create_instance(host_.api(), {}), std::invalid_argument);
}

TEST_F(AdoptedBackend, InstanceIsDestroyedOnceAndOutlivesTheLoadedBackend) {
  { const auto instance = adopt().create_instance(host_.api(), values_); }
  EXPECT_EQ(recorded_.destroyed, 1);
}

TEST_F(AdoptedBackend, EveryBegunExchangeIsEndedOnce) {
  const auto instance = adopt().create_instance(host_.api(), values_);
  const auto& request = host_.request("/generate", "{}", true);
  {
    BackendExchange first;
    ASSERT_EQ(instance->begin(request, host_.turn(), first), HANDOFF_OK);
    EXPECT_EQ(instance->begin(request, host_.turn(), first), HANDOFF_WRONG_STATE);  // holds one already
    BackendExchange moved(std::move(first));
    BackendExchange second;
    ASSERT_EQ(instance->begin(request, host_.turn(), second), HANDOFF_OK);
    second = std::move(moved);  // ends the one it held
    EXPECT_EQ(recorded_.ended, 1);
    second.end();
    second.end();
    EXPECT_EQ(recorded_.ended, 2);
    EXPECT_EQ(second.event(handoff_event{}, host_.turn()), HANDOFF_WRONG_STATE);
  }
  EXPECT_EQ(recorded_.begun, 2);
  EXPECT_EQ(recorded_.ended, 2);
}

TEST_F(AdoptedBackend, ExchangeThatDidNotBeginIsNotEnded) {
  const auto instance = adopt().create_instance(host_.api(), values_);
  recorded_.begin_status = HANDOFF_INVALID;
  {
    BackendExchange exchange;
    EXPECT_EQ(instance->begin(host_.request("/generate", "{}", true), host_.turn(), exchange),
              HANDOFF_INVALID);
    EXPECT_FALSE(exchange.active());
  }
  EXPECT_EQ(recorded_.ended, 0);
}

}  // namespace
}  // namespace handoff::sidecar
