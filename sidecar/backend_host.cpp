#include "sidecar/backend_host.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "sidecar/abi_text.hpp"
#include "sidecar/backend_declaration.hpp"
#include "sidecar/shared_object_file.hpp"

namespace handoff::sidecar {
namespace {

constexpr std::string_view kFilePrefix = "handoff_backend_";
constexpr std::string_view kFileSuffix = ".so";

// The table of version 1.0. Every backend has at least this much.
constexpr std::size_t kSmallestTable = offsetof(handoff_backend_api, end) + sizeof(handoff_backend_api::end);

std::string version(unsigned major, unsigned minor) {
  return std::to_string(major) + '.' + std::to_string(minor);
}
const std::string& our_version() {
  static const std::string text = version(HANDOFF_ABI_MAJOR, HANDOFF_ABI_MINOR);
  return text;
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw BackendLoadError("cannot load backend " + printable(path) + ": " + reason);
}

/// Runs a plugin's entry. The text of an exception that came out of it, or nothing.
template <class Entry>
std::optional<std::string> exception_of(Entry entry) noexcept {
  try {
    try {
      entry();
      return std::nullopt;
    } catch (const std::exception& leaked) {
      return printable(leaked.what());
    }
  } catch (...) {
    return "not a std::exception";
  }
}

/// Backends that lie in the directory of `path`, for the message that one was not found.
std::string neighbours(const std::filesystem::path& path) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(path.parent_path(), error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const auto file = entries->path().filename().string();
    const bool is_backend = file.size() > kFilePrefix.size() + kFileSuffix.size() &&
                            file.starts_with(kFilePrefix) && file.ends_with(kFileSuffix);
    if (is_backend) {
      names.push_back(file.substr(kFilePrefix.size(), file.size() - kFilePrefix.size() - kFileSuffix.size()));
    }
  }
  if (names.empty()) return "no backend lies in that directory";
  std::sort(names.begin(), names.end());
  std::string list = "that directory has:";
  for (const auto& name : names) list += ' ' + printable(name);
  return list;
}

/// What dlerror() says, without the path that most of its messages begin with.
std::string dl_reason(const std::string& path) {
  const char* text = ::dlerror();
  std::string_view reason = text == nullptr ? "unknown reason" : text;
  if (reason.starts_with(path + ": ")) reason.remove_prefix(path.size() + 2);
  return printable(reason);
}

/// The table that the plugin's entry returns, or an error.
const handoff_backend_api* ask_for_table(handoff_backend_entry entry, const std::string& path) {
  const handoff_backend_api* table = nullptr;
  const auto leaked = exception_of([&] { table = entry(HANDOFF_ABI_MAJOR, HANDOFF_ABI_MINOR); });
  if (leaked) refuse(path, HANDOFF_BACKEND_SYMBOL "() threw an exception: " + *leaked);
  if (table == nullptr) {
    refuse(path, HANDOFF_BACKEND_SYMBOL "() returned NULL: the backend can't work with this sidecar's ABI " +
                     our_version());
  }
  return table;
}

void check_version(const handoff_backend_api& theirs, const std::string& path) {
  const auto both =
      "built for ABI " + version(theirs.abi_major, theirs.abi_minor) + ", this sidecar has " + our_version();
  if (theirs.abi_major != HANDOFF_ABI_MAJOR) refuse(path, both + "; rebuild it with this sidecar's headers");
  if (theirs.abi_minor > HANDOFF_ABI_MINOR) {
    refuse(path, both + "; upgrade the sidecar, or rebuild the backend with this sidecar's headers");
  }
  if (theirs.struct_size < kSmallestTable) {
    refuse(path, "its table is truncated: struct_size is " + std::to_string(theirs.struct_size) +
                     ", at least " + std::to_string(kSmallestTable) + " is needed");
  }
}

void check_entries(const handoff_backend_api& table, const std::string& path) {
  const std::array<std::pair<const char*, bool>, 5> required{{
      {"create", table.create != nullptr},
      {"destroy", table.destroy != nullptr},
      {"begin", table.begin != nullptr},
      {"event", table.event != nullptr},
      {"end", table.end != nullptr},
  }};
  for (const auto& [name, present] : required) {
    if (!present) refuse(path, std::string("the required entry ") + name + "() is NULL");
  }
}

}  // namespace

// --- Finding and loading
// -------------------------------------------------------------------------------------

std::string default_backend_directory() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    throw BackendLoadError("cannot find the directory of this program (" + error.message() +
                           "); set DYN_SIDECAR_BACKEND_DIR or give the backend as a path");
  }
  return program.parent_path().string();
}

std::string resolve_backend_path(std::string_view name_or_path, std::string_view directory) {
  if (name_or_path.find('\0') != std::string_view::npos) {
    throw BackendLoadError("cannot load backend " + printable(name_or_path) + ": the path contains a NUL");
  }
  if (name_or_path.find('/') != std::string_view::npos) return std::string(name_or_path);
  const bool is_name =
      !name_or_path.empty() && std::all_of(name_or_path.begin(), name_or_path.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
      });
  if (!is_name) {
    throw BackendLoadError("\"" + printable(name_or_path) +
                           "\" is not a backend: give a name of a-z, 0-9, _ and -, or a path with a '/'");
  }
  std::filesystem::path path = directory.empty() ? default_backend_directory() : std::string(directory);
  path /= std::string(kFilePrefix) + std::string(name_or_path) + std::string(kFileSuffix);
  return path.string();
}

LoadedBackend load_backend(const std::string& path) {
  if (auto problem = find_file_problem(path); !problem.empty()) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) problem += "; " + neighbours(path);
    refuse(path, problem);
  }
  // Without a '/' dlopen() would search the library path for another file than the one just checked.
  const auto exact = path.find('/') == std::string::npos ? "./" + path : path;
  // Now: an unresolved symbol stops the start, not request 10,000. Local: two plugins, and the sidecar, may
  // hold different versions of one library.
  void* object = ::dlopen(exact.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) refuse(path, dl_reason(exact));
  void* symbol = ::dlsym(object, HANDOFF_BACKEND_SYMBOL);
  if (symbol == nullptr) {
    refuse(path, "it does not export " HANDOFF_BACKEND_SYMBOL
                 "(); is it a backend, and is the function extern \"C\" and visible?");
  }
  return adopt_backend(reinterpret_cast<handoff_backend_entry>(symbol), path);
}

LoadedBackend adopt_backend(handoff_backend_entry entry, std::string path) {
  const auto* theirs = ask_for_table(entry, path);
  check_version(*theirs, path);
  handoff_backend_api table{};
  std::memcpy(&table, theirs, std::min<std::size_t>(theirs->struct_size, sizeof(table)));
  check_entries(table, path);
  if (const auto problem = find_declaration_problem(table); !problem.empty()) {
    refuse(path, "bad declaration: " + problem);
  }
  return LoadedBackend(table, std::move(path));
}

// --- LoadedBackend
// -------------------------------------------------------------------------------------------

LoadedBackend::LoadedBackend(const handoff_backend_api& table, std::string path)
    : table_(table), path_(std::move(path)) {
  for (const auto& route : std::span(table.routes, table.route_count)) {
    routes_.push_back({view(route.method), view(route.path)});
  }
  for (const auto& field : std::span(table.reserved_fields, table.reserved_field_count)) {
    reserved_fields_.push_back(view(field.path));
  }
  for (const auto& key : std::span(table.config_keys, table.config_key_count)) {
    config_keys_.push_back({view(key.name), view(key.accepts), view(key.default_value), view(key.help),
                            key.kind, (key.flags & HANDOFF_CONFIG_SECRET) != 0});
  }
}

std::string_view LoadedBackend::name() const {
  return view(table_.name);
}
std::string_view LoadedBackend::protocol() const {
  return view(table_.protocol);
}
std::string_view LoadedBackend::health_path() const {
  return view(table_.health_path);
}

std::string LoadedBackend::describe() const {
  return "backend " + std::string(name()) + ", protocol " + std::string(protocol()) + ", ABI " +
         version(table_.abi_major, table_.abi_minor) + " (sidecar " + our_version() + "), " +
         printable(path_);
}

std::unique_ptr<BackendInstance> LoadedBackend::create_instance(const handoff_host_api& host,
                                                                std::span<const std::string> values) const {
  if (values.size() != config_keys_.size()) {
    throw std::invalid_argument("backend " + std::string(name()) + " declares " +
                                std::to_string(config_keys_.size()) + " settings, got " +
                                std::to_string(values.size()));
  }
  std::vector<handoff_setting> settings;
  for (std::size_t i = 0; i < values.size(); ++i) {
    settings.push_back({to_abi(config_keys_[i].name), to_abi(values[i])});
  }
  handoff_config config{};
  config.struct_size = sizeof(config);
  config.settings = settings.data();
  config.setting_count = settings.size();

  handoff_backend* backend = nullptr;
  handoff_status status = HANDOFF_FAILED;
  std::array<char, 512> reason{};
  const auto leaked =
      exception_of([&] { status = table_.create(&host, &config, &backend, reason.data(), reason.size()); });
  reason.back() = '\0';
  const auto failed = [&](const std::string& why) -> BackendLoadError {
    return BackendLoadError("backend " + std::string(name()) + " (" + printable(path_) +
                            ") can't start: " + why);
  };
  if (leaked) throw failed("create() threw an exception: " + *leaked);
  if (status != HANDOFF_OK) {
    throw failed(reason.front() != '\0'
                     ? printable(reason.data())
                     : "create() returned status " + std::to_string(status) + " without a reason");
  }
  if (backend == nullptr) throw failed("create() returned no instance");
  return std::unique_ptr<BackendInstance>(new BackendInstance(table_, backend));
}

// --- BackendInstance
// -----------------------------------------------------------------------------------------

BackendInstance::~BackendInstance() {
  exception_of([&] { table_.destroy(backend_); });
}

handoff_status BackendInstance::begin(const handoff_request& request, handoff_turn* turn,
                                      BackendExchange& out) noexcept {
  if (out.active()) return HANDOFF_WRONG_STATE;
  handoff_status status = HANDOFF_FAILED;
  handoff_exchange* exchange = nullptr;
  if (exception_of([&] { status = table_.begin(backend_, &request, turn, &exchange); }))
    return HANDOFF_FAILED;
  if (status != HANDOFF_OK) return status;
  out.table_ = &table_;
  out.exchange_ = exchange;
  return HANDOFF_OK;
}

// --- BackendExchange
// -----------------------------------------------------------------------------------------

BackendExchange::BackendExchange(BackendExchange&& other) noexcept
    : table_(std::exchange(other.table_, nullptr)), exchange_(std::exchange(other.exchange_, nullptr)) {}

BackendExchange& BackendExchange::operator=(BackendExchange&& other) noexcept {
  if (this != &other) {
    end();
    table_ = std::exchange(other.table_, nullptr);
    exchange_ = std::exchange(other.exchange_, nullptr);
  }
  return *this;
}

BackendExchange::~BackendExchange() {
  end();
}

handoff_status BackendExchange::event(const handoff_event& event, handoff_turn* turn) noexcept {
  if (!active()) return HANDOFF_WRONG_STATE;
  handoff_status status = HANDOFF_FAILED;
  if (exception_of([&] { status = table_->event(exchange_, &event, turn); })) return HANDOFF_FAILED;
  return status;
}

void BackendExchange::end() noexcept {
  if (!active()) return;
  const auto* table = std::exchange(table_, nullptr);
  auto* exchange = std::exchange(exchange_, nullptr);
  exception_of([&] { table->end(exchange); });
}

}  // namespace handoff::sidecar
