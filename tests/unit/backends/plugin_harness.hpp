#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/backend_abi/decode_backend.h"
#include "shared/json/object_scan.hpp"

// A sidecar in memory for tests of backend plugins: it loads the built .so, gives it a request and events,
// and writes down what it asks for. No network, no clock. It is as strict as decode_backend.h allows, and
// everything that a plugin may only borrow is freed as early as allowed, so that sanitizers see who keeps it.
namespace handoff::plugin_test {

struct Header {
  std::string name;
  std::string value;
  bool operator==(const Header&) const = default;
};

/// Where prefill runs.
struct Endpoint {
  std::string host = "10.0.0.9";
  std::uint32_t port = 8000;
};

struct Request {
  std::string path;
  std::string body;
  std::optional<Endpoint> prefill = Endpoint{};
  std::vector<Header> headers = {{"content-type", "application/json"}};
  std::string target = {};  ///< empty: the path
  std::string method = "POST";
  std::string request_id = "request-1";
};

/// A request to an engine, with its body put together.
struct Leg {
  std::uint32_t id = 0;
  std::uint32_t role = 0;
  std::uint32_t target = 0;
  std::uint32_t port = 0;
  std::uint32_t reply = 0;
  std::uint32_t flags = 0;
  std::uint32_t linger_ms = 0;
  std::uint32_t deadline_ms = 0;
  std::uint64_t reply_limit = 0;
  std::string method = {};
  std::string path = {};
  std::string name = {};
  std::vector<Header> headers = {};
  std::string body = {};

  /// Value that replaces the client's fields of that name; "" removes them, nothing leaves them.
  std::optional<std::string> header(std::string_view wanted) const;
};

/// One call of the plugin that was carried out.
struct Action {
  enum class Kind {
    start,
    cancel,
    relay,
    respond,
    write,
    fail,
    fail_with_leg,
    decode_only,
    background,
  };
  Kind kind = Kind::start;
  Leg leg = {};                      ///< start, background
  std::uint32_t leg_id = 0;          ///< start, cancel, relay, fail, fail_with_leg
  std::uint32_t status = 0;          ///< respond, fail
  std::string code = {};             ///< fail
  std::string message = {};          ///< fail
  std::string reason = {};           ///< decode_only
  std::vector<Header> headers = {};  ///< respond, decode_only
  std::string body = {};             ///< respond, write
};
std::string_view to_text(Action::Kind kind);

struct Event {
  std::uint32_t kind = 0;
  std::uint32_t leg = 0;
  std::uint32_t status = 0;
  std::string body = {};
  std::uint32_t cause = 0;
  std::uint32_t flags = 0;
  std::uint32_t outcome = 0;
  std::vector<Header> headers = {};
};
Event leg_done(std::uint32_t leg, std::uint32_t status, std::string body);
Event leg_failed(std::uint32_t leg, std::uint32_t cause, std::uint32_t flags = 0);
Event ended(std::uint32_t outcome, std::uint32_t flags = 0);

/// A loaded plugin. Stays loaded for the life of the process, as in the sidecar.
class Plugin {
 public:
  /// Throws std::runtime_error when the file is no plugin for this ABI.
  explicit Plugin(const std::string& path);
  const handoff_backend_api& api() const { return *api_; }

 private:
  const handoff_backend_api* api_ = nullptr;
};

class Exchange;

/// The host's table and what goes through it. Must outlive its backends.
class Host {
 public:
  explicit Host(std::uint32_t seed = 1);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const handoff_host_api* api() const { return &table_; }
  std::map<std::string, int> counts;                          ///< by name
  std::vector<std::pair<std::string, std::string>> warnings;  ///< key, message
  std::vector<std::string> refusals;                          ///< calls that did not fit, and why
  std::uint64_t now_ms = 1000;                                ///< what requests and events say of the time

 private:
  friend class Exchange;
  struct Table : handoff_host_api {
    Host* self;
  };
  /// One json() result. Freed with the entry.
  struct Scan {
    json::ObjectScan scan;
    std::vector<handoff_member> members;
  };

  static Host& from(const handoff_host_api* api);
  static handoff_status json(const handoff_host_api* api, handoff_bytes text, handoff_object* out);
  static void random(const handoff_host_api* api, void* out, std::size_t size);
  static void warn(const handoff_host_api* api, handoff_bytes key, handoff_bytes message);
  static void count(const handoff_host_api* api, handoff_bytes name);

  Table table_{};
  std::mt19937 random_;
  std::vector<std::unique_ptr<Scan>> scans_;  ///< of the running entry
};

/// A created backend. Settings that are not given have the plugin's defaults.
class Backend {
 public:
  Backend(const Plugin& plugin, Host& host, const std::map<std::string, std::string>& settings = {});
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  bool needs_prefill() const { return (plugin_.api().flags & HANDOFF_BACKEND_NEEDS_PREFILL) != 0; }
  bool created() const { return backend_ != nullptr; }
  const std::string& error() const { return error_; }

 private:
  friend class Exchange;
  const Plugin& plugin_;
  Host& host_;
  handoff_backend* backend_ = nullptr;
  std::string error_;
};

/// One request through the plugin: begin() on construction, END (if the test sent none) and end() on
/// destruction.
class Exchange {
 public:
  Exchange(Backend& backend, const Request& request);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  handoff_status begin_status() const { return begin_status_; }
  /// Delivers an event and returns the actions that it caused.
  std::vector<Action> deliver(const Event& event);
  handoff_status last_status() const { return last_status_; }

  const std::vector<Action>& begin_actions() const { return begin_actions_; }
  /// The client has its answer, or the first byte of it, or a leg that was asked to give it is done.
  bool answered() const { return answered_; }
  bool over() const { return over_; }
  /// Legs that were started and have neither ended nor been given up.
  const std::map<std::uint32_t, Leg>& running() const { return running_; }

 private:
  friend struct TurnCalls;
  struct Owned;

  bool refuse(std::string_view call, std::string_view why);
  bool may_answer(std::string_view call);
  bool read_pieces(const handoff_piece* pieces, std::size_t count, std::string& out);
  std::optional<Leg> read_leg(const handoff_leg& leg, std::string_view call);
  void settle();
  std::vector<Action> run(const std::function<handoff_status(handoff_turn*)>& entry);

  Backend& backend_;
  std::unique_ptr<Owned> owned_;
  const bool has_prefill_;
  handoff_exchange* exchange_ = nullptr;
  handoff_status begin_status_ = HANDOFF_OK;
  handoff_status last_status_ = HANDOFF_OK;
  std::vector<Action> begin_actions_;
  std::vector<Action> actions_;  ///< of the running entry
  std::map<std::uint32_t, Leg> running_;
  std::map<std::uint32_t, Leg> finished_;
  std::set<std::uint32_t> complete_;      ///< legs that ended well
  std::optional<std::uint32_t> relayed_;  ///< the leg that was made the answer
  bool answered_ = false;
  bool more_follows_ = false;  ///< respond(more) was called and the last write() was not
  bool in_end_ = false;
  bool over_ = false;
};

}  // namespace handoff::plugin_test
