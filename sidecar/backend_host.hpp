// The sidecar's side of the plugin boundary: finds a backend's shared object, loads it, checks everything it
// declares, and calls it. Nothing outside this pair of files calls a plugin's entry.
//
//   resolve_backend_path -> load_backend -> LoadedBackend -> create_instance (one per event loop)
//                                                          -> BackendInstance::begin -> BackendExchange
//
// Loading and creating are start-up work: they throw BackendLoadError. On the request path nothing throws.
// A C++ exception that a plugin lets out, against the rules of the ABI, is caught here and becomes
// HANDOFF_FAILED. That is best effort: it needs a plugin that was built with unwind tables and against the
// same C++ run-time library, and what the plugin had locked or half written stays so.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "shared/backend_abi/decode_backend.h"

namespace handoff::sidecar {

/// A backend can't be used. what() is one line that names the file and the reason.
class BackendLoadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A declared method and path.
struct BackendRoute {
  std::string_view method;
  std::string_view path;
};

/// A declared setting. `kind` is one of HANDOFF_CONFIG_*.
struct BackendConfigKey {
  std::string_view name;
  std::string_view accepts;
  std::string_view default_value;
  std::string_view help;
  std::uint32_t kind = HANDOFF_CONFIG_STRING;
  bool secret = false;
};

/// One request's state machine in a backend. Belongs to its instance's loop and must not outlive the
/// instance. The destructor calls the backend's end(), exactly once for a successful begin().
class BackendExchange {
 public:
  BackendExchange() = default;
  BackendExchange(BackendExchange&& other) noexcept;
  BackendExchange& operator=(BackendExchange&& other) noexcept;
  ~BackendExchange();

  /// Whether a begin() succeeded and end() is still owed.
  bool active() const { return table_ != nullptr; }
  /// Tells the backend what happened. HANDOFF_WRONG_STATE if there is no active exchange.
  handoff_status event(const handoff_event& event, handoff_turn* turn) noexcept;
  /// Calls end() now. Harmless if there is nothing to end.
  void end() noexcept;

 private:
  friend class BackendInstance;
  const handoff_backend_api* table_ = nullptr;  // the instance's copy
  handoff_exchange* exchange_ = nullptr;        // may be NULL: a backend need not keep state per request
};

/// A backend created for one event loop, and used on that loop only. Outlives its exchanges; the destructor
/// calls the backend's destroy(). Not movable, since exchanges point to it.
class BackendInstance {
 public:
  BackendInstance(const BackendInstance&) = delete;
  BackendInstance& operator=(const BackendInstance&) = delete;
  ~BackendInstance();

  /// Tells the backend of a request. On HANDOFF_OK `out`, which must not be active, holds the exchange. What
  /// `request` refers to must live until the exchange has ended.
  handoff_status begin(const handoff_request& request, handoff_turn* turn, BackendExchange& out) noexcept;

 private:
  friend class LoadedBackend;
  BackendInstance(const handoff_backend_api& table, handoff_backend* backend)
      : table_(table), backend_(backend) {}

  handoff_backend_api table_;
  handoff_backend* backend_;
};

/// A shared object that passed all checks. A plain value: copies refer to the same code, which is never
/// unloaded. dlclose() would pull constants, thread-local destructors and code in flight from under their
/// users, to save a mapping that the process needs for its whole life.
class LoadedBackend {
 public:
  const std::string& path() const { return path_; }
  std::string_view name() const;
  std::string_view protocol() const;
  std::span<const BackendRoute> routes() const { return routes_; }
  /// Dotted paths of members that only a sidecar may set.
  std::span<const std::string_view> reserved_fields() const { return reserved_fields_; }
  std::span<const BackendConfigKey> config_keys() const { return config_keys_; }
  std::string_view health_path() const;
  std::uint32_t health_interval_ms() const { return table_.health_interval_ms; }
  std::uint32_t engine_idle_ms() const { return table_.engine_idle_ms; }
  /// The local engine can't prefill: no request with a prefill endpoint may be left to it alone.
  bool needs_prefill() const { return (table_.flags & HANDOFF_BACKEND_NEEDS_PREFILL) != 0; }
  /// One line for the start-up log: name, protocol, both ABI versions and the file.
  std::string describe() const;

  /// Calls create(). `values` holds one value per declared key, in the order declared and in canonical text.
  /// `host` must outlive the instance. Throws BackendLoadError if the backend refuses, std::invalid_argument
  /// if the number of values is wrong.
  std::unique_ptr<BackendInstance> create_instance(const handoff_host_api& host,
                                                   std::span<const std::string> values) const;

 private:
  friend LoadedBackend adopt_backend(handoff_backend_entry entry, std::string path);
  LoadedBackend(const handoff_backend_api& table, std::string path);

  handoff_backend_api table_;  // a copy: what lies beyond the plugin's struct_size is zero
  std::string path_;
  std::vector<BackendRoute> routes_;
  std::vector<std::string_view> reserved_fields_;
  std::vector<BackendConfigKey> config_keys_;
};

/// The directory of the running program, where plugins lie unless told otherwise.
std::string default_backend_directory();

/// The file that a value of DYN_SIDECAR_BACKEND means. With a '/' it is a path; otherwise a name of a-z, 0-9,
/// _ and -, which stands for <directory>/handoff_backend_<name>.so. An empty directory is the default one.
/// Throws BackendLoadError for a value that is neither. Does not look at the file.
std::string resolve_backend_path(std::string_view name_or_path, std::string_view directory = {});

/// Loads the shared object at `path` and checks it. Throws BackendLoadError.
LoadedBackend load_backend(const std::string& path);

/// The same checks for a backend that is linked into the program, such as one of a test. `path` is only named
/// in messages.
LoadedBackend adopt_backend(handoff_backend_entry entry, std::string path);

}  // namespace handoff::sidecar
