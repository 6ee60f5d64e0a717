// A thin C++20 layer over decode_backend.h for writing a backend plugin. Header-only, standard library only:
// it is compiled into the plugin, so nothing of it crosses the boundary. See docs/backend-plugins.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/backend_abi/decode_backend.h"

namespace handoff::sdk {

constexpr handoff_bytes bytes(std::string_view text) {
  return {text.data(), text.size()};
}
constexpr std::string_view view(handoff_bytes span) {
  return span.size == 0 ? std::string_view{} : std::string_view{span.data, span.size};
}
constexpr handoff_header header(std::string_view name, std::string_view value) {
  return {bytes(name), bytes(value)};
}

inline bool equals_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; };
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

/// First field of that name, if any. The view lives as long as the header array.
inline std::optional<std::string_view> find_header(const handoff_header* headers, std::size_t count,
                                                   std::string_view name) {
  for (const auto& field : std::span(headers, count)) {
    if (equals_ignoring_case(view(field.name), name)) return view(field.value);
  }
  return std::nullopt;
}

constexpr bool is_success(std::uint32_t status) {
  return status >= 200 && status < 300;
}

/// Whether a leg failed because the engine closed an idle connection while it was taken for the leg: the
/// engine has said nothing, and what may be sent again can be sent again. Legs that the exchange starts
/// afterwards have connections of their own, so that they don't meet the same.
constexpr bool lost_in_transit(const handoff_event& event) {
  return event.kind == HANDOFF_EVENT_LEG_FAILED && event.cause == HANDOFF_CAUSE_RESET &&
         (event.flags & HANDOFF_REUSED) != 0 && (event.flags & HANDOFF_REPLY_STARTED) == 0;
}

/// A JSON object's members as positions; a value type over what the host listed. Lives as long as its source.
class Object {
 public:
  Object() = default;
  explicit Object(const handoff_object& scanned) : scanned_(scanned) {}

  bool is_object() const { return scanned_.text_kind == HANDOFF_TEXT_OBJECT && scanned_.text.size != 0; }
  std::string_view text() const { return view(scanned_.text); }
  std::span<const handoff_member> members() const { return {scanned_.members, scanned_.member_count}; }

  /// The member that an engine would see: the last one of that name. Null if there is none.
  const handoff_member* find(std::string_view name) const {
    for (std::size_t i = scanned_.member_count; i-- > 0;) {
      if (view(scanned_.members[i].name) == name) return &scanned_.members[i];
    }
    return nullptr;
  }
  /// The value's text as it stands in the document.
  std::string_view raw(const handoff_member& member) const {
    return text().substr(member.value_begin, member.value_end - member.value_begin);
  }
  const handoff_object& abi() const { return scanned_; }

 private:
  handoff_object scanned_{};
};

/// Edits of an object's members that leave every other byte where it is. Values are views: they must live
/// until the pieces have been handed to the host.
class BodyEdit {
 public:
  /// `base` is the offset of the object's text within the request body: zero for the body itself.
  explicit BodyEdit(const Object& object, std::size_t base = 0) : object_(object), base_(base) {
    changes_.reserve(8);
  }

  /// Takes every member of that name out.
  void remove(std::string_view name) {
    if (auto* change = find(name); change != nullptr || has(name)) of(name, change).kind = Change::kRemove;
  }

  /// Gives every member of that name this value (JSON text), so that it does not matter which of two an
  /// engine takes; appends a member if there is none.
  void set(std::string_view name, std::string_view json) {
    auto& change = of(name, find(name));
    change.kind = Change::kSet;
    change.value = {json.data(), 0, json.size()};
  }

  /// Same, with a value put together from pieces.
  void set(std::string_view name, std::span<const handoff_piece> json) {
    auto& change = of(name, find(name));
    change.kind = Change::kSetPieces;
    change.begin = pieces_.size();
    change.count = json.size();
    pieces_.insert(pieces_.end(), json.begin(), json.end());
  }
  void set(std::string_view name, std::initializer_list<handoff_piece> json) {
    set(name, std::span(json.begin(), json.size()));
  }

  /// Same, with the edited form of the object that now is the member's value.
  void set(std::string_view name, const BodyEdit& nested) {
    set(name, std::span<const handoff_piece>(nested.pieces()));
  }

  bool has(std::string_view name) const { return object_.find(name) != nullptr; }

  /// The edited document: pieces of the request body and new bytes.
  std::vector<handoff_piece> pieces() const {
    const auto members = object_.members();
    std::vector<handoff_piece> out;
    out.reserve(changes_.size() * 4 + pieces_.size() + 4);
    std::size_t cursor = 0;
    bool kept_any = false;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const auto& member = members[i];
      const Change* change = change_of(member);
      if (change == nullptr) {
        kept_any = true;
      } else if (change->kind != Change::kRemove) {
        original(out, cursor, member.value_begin);
        append(out, *change);
        cursor = member.value_end;
        kept_any = true;
      } else if (kept_any) {  // the comma before it goes too
        original(out, cursor, members[i - 1].value_end);
        cursor = member.value_end;
      } else {  // nothing stands before it: the comma after it goes
        original(out, cursor, member.key_begin);
        cursor = i + 1 < members.size() ? members[i + 1].key_begin : member.value_end;
      }
    }
    for (const auto& change : changes_) {
      if (change.is_there || change.kind == Change::kRemove) continue;
      const auto at = members.empty() ? object_.abi().open_brace + 1 : members.back().value_end;
      if (cursor < at) {
        original(out, cursor, at);
        cursor = at;
      }
      fresh(out, kept_any ? ",\"" : "\"");
      fresh(out, change.name);
      fresh(out, "\":");
      append(out, change);
      kept_any = true;
    }
    original(out, cursor, object_.text().size());
    return out;
  }

 private:
  /// What becomes of the members of one name. Of a name that is not there, what is appended.
  struct Change {
    enum Kind { kRemove, kSet, kSetPieces };
    std::string_view name;
    Kind kind = kRemove;
    handoff_piece value{};  ///< kSet
    std::size_t begin = 0;  ///< kSetPieces: where in `pieces_`
    std::size_t count = 0;
    bool is_there = false;
  };

  Change* find(std::string_view name) {
    for (auto& change : changes_) {
      if (change.name == name) return &change;
    }
    return nullptr;
  }
  Change& of(std::string_view name, Change* known) {
    if (known != nullptr) return *known;
    auto& added = changes_.emplace_back();
    added.name = name;
    added.is_there = has(name);
    return added;
  }
  const Change* change_of(const handoff_member& member) const {
    for (const auto& change : changes_) {
      if (change.is_there && change.name == view(member.name)) return &change;
    }
    return nullptr;
  }

  void append(std::vector<handoff_piece>& out, const Change& change) const {
    if (change.kind == Change::kSetPieces) {
      const auto begin = pieces_.begin() + static_cast<std::ptrdiff_t>(change.begin);
      out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(change.count));
    } else if (change.value.size != 0) {
      out.push_back(change.value);
    }
  }
  void original(std::vector<handoff_piece>& out, std::size_t from, std::size_t to) const {
    if (from < to) out.push_back({nullptr, base_ + from, to - from});
  }
  static void fresh(std::vector<handoff_piece>& out, std::string_view text) {
    if (!text.empty()) out.push_back({text.data(), 0, text.size()});
  }

  Object object_;
  std::size_t base_;
  std::vector<Change> changes_;
  std::vector<handoff_piece> pieces_;
};

/// The sidecar's services. Lives as long as the backend.
class Host {
 public:
  explicit Host(const handoff_host_api* api) : api_(api) {}

  /// Members of the object that `text` is; is_object() tells whether it was one. Valid until the entry
  /// returns.
  Object json(std::string_view text) const {
    handoff_object out{};
    out.struct_size = sizeof(out);
    if (api_->json(api_, bytes(text), &out) != HANDOFF_OK)
      throw std::runtime_error("too many scans in one entry");
    return Object(out);
  }
  void random(void* out, std::size_t size) const { api_->random(api_, out, size); }
  void warn(std::string_view key, std::string_view message) const {
    api_->warn(api_, bytes(key), bytes(message));
  }
  void count(std::string_view name) const { api_->count(api_, bytes(name)); }
  const handoff_host_api* abi() const { return api_; }

 private:
  const handoff_host_api* api_;
};

/// A leg to start. Defaults: the client's method, target and headers, and no body.
struct Leg {
  std::uint32_t id = 0;
  std::uint32_t role = HANDOFF_ROLE_PREFILL;
  std::uint32_t target = HANDOFF_TARGET_PREFILL;
  std::uint32_t port = 0;
  std::uint32_t reply = HANDOFF_REPLY_COLLECT;
  std::uint32_t flags = 0;
  std::uint32_t linger_ms = 0;
  std::uint32_t deadline_ms = 0;
  std::uint64_t reply_limit = 0;
  std::string_view method;
  std::string_view path;
  std::string_view name;
  std::span<const handoff_header> headers;
  std::span<const handoff_piece> body;

  handoff_leg abi() const {
    handoff_leg out{};
    out.struct_size = sizeof(out);
    out.id = id;
    out.role = role;
    out.target = target;
    out.port = port;
    out.reply = reply;
    out.flags = flags;
    out.linger_ms = linger_ms;
    out.deadline_ms = deadline_ms;
    out.reply_limit = reply_limit;
    out.method = bytes(method);
    out.path = bytes(path);
    out.name = bytes(name);
    out.headers = headers.data();
    out.header_count = headers.size();
    out.body = body.data();
    out.piece_count = body.size();
    return out;
  }
};

/// An OpenAI-shaped error. `code` and `message` are constants: no request or engine text.
struct Failure {
  std::uint32_t status = 502;
  std::string_view code;
  std::string_view message;
  std::string_view param = {};
  std::uint32_t leg = HANDOFF_NO_LEG;
  std::uint32_t retry_after_s = 0;
};

/// Actions of one entry. A misuse throws std::logic_error, which the glue turns into HANDOFF_FAILED.
class Turn {
 public:
  Turn(const handoff_host_api* api, handoff_turn* turn) : api_(api), turn_(turn) {}

  void start(const Leg& leg) {
    const auto abi = leg.abi();
    must(api_->start(turn_, &abi), "start");
  }
  void background(const Leg& leg) {
    const auto abi = leg.abi();
    must(api_->background(turn_, &abi), "background");
  }
  void cancel(std::uint32_t leg) { must(api_->cancel(turn_, leg), "cancel"); }
  void relay(std::uint32_t leg) { must(api_->relay(turn_, leg), "relay"); }
  void fail_with_leg(std::uint32_t leg) { must(api_->fail_with_leg(turn_, leg), "fail_with_leg"); }
  void decode_only(std::string_view reason, std::span<const handoff_header> headers = {}) {
    must(api_->decode_only(turn_, bytes(reason), headers.data(), headers.size()), "decode_only");
  }
  void fail(const Failure& failure) {
    handoff_failure abi{};
    abi.struct_size = sizeof(abi);
    abi.status = failure.status;
    abi.code = bytes(failure.code);
    abi.message = bytes(failure.message);
    abi.param = bytes(failure.param);
    abi.leg = failure.leg;
    abi.retry_after_s = failure.retry_after_s;
    must(api_->fail(turn_, &abi), "fail");
  }
  void respond(std::uint32_t status, std::span<const handoff_header> headers,
               std::span<const handoff_piece> body, bool more = false) {
    handoff_reply abi{};
    abi.struct_size = sizeof(abi);
    abi.status = status;
    abi.headers = headers.data();
    abi.header_count = headers.size();
    abi.body = body.data();
    abi.piece_count = body.size();
    abi.more = more;
    must(api_->respond(turn_, &abi), "respond");
  }
  void write(std::span<const handoff_piece> pieces, bool last) {
    must(api_->write(turn_, pieces.data(), pieces.size(), last), "write");
  }

 private:
  static void must(handoff_status status, const char* action) {
    if (status != HANDOFF_OK) throw std::logic_error(std::string("the sidecar refused ") + action);
  }
  const handoff_host_api* api_;
  handoff_turn* turn_;
};

/// The settings given to create(), by declared name.
class Config {
 public:
  explicit Config(const handoff_config* config) : settings_(config->settings, config->setting_count) {}
  std::string_view get(std::string_view name) const {
    for (const auto& setting : settings_) {
      if (view(setting.name) == name) return view(setting.value);
    }
    return {};
  }

 private:
  std::span<const handoff_setting> settings_;
};

/// One request's state machine. Destroyed by end().
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void on_event(const handoff_event& event, Turn& turn) = 0;
};

/// What a plugin declares; every span is constant data.
struct Declaration {
  std::string_view name;
  std::string_view protocol;
  std::span<const handoff_route> routes;
  std::span<const handoff_reserved_field> reserved_fields = {};
  std::span<const handoff_config_key> config_keys = {};
  std::string_view health_path = "/health";
  std::uint32_t health_interval_ms = 1000;
  std::uint32_t engine_idle_ms = 4000;
  std::uint32_t flags = 0;  ///< HANDOFF_BACKEND_*
};

/// The C entries for a `Backend` that has a constructor (Host, const Config&) that may throw std::exception,
/// and `std::unique_ptr<Exchange> begin(const handoff_request&, Turn&)`. No exception leaves an entry.
template <class Backend>
struct Glue {
  struct Instance {
    const handoff_host_api* host;
    Backend backend;
  };
  struct Running {
    const handoff_host_api* host;
    std::unique_ptr<Exchange> exchange;
  };

  static handoff_status create(const handoff_host_api* host, const handoff_config* config,
                               handoff_backend** out, char* error, std::size_t error_size) {
    const auto explain = [&](const char* text) {
      if (error_size == 0) return;
      std::strncpy(error, text, error_size - 1);
      error[error_size - 1] = '\0';
    };
    try {
      auto instance = std::unique_ptr<Instance>(new Instance{host, Backend(Host(host), Config(config))});
      *out = reinterpret_cast<handoff_backend*>(instance.release());
      return HANDOFF_OK;
    } catch (const std::exception& problem) {
      explain(problem.what());
    } catch (...) {
      explain("unknown exception");
    }
    return HANDOFF_FAILED;
  }

  static void destroy(handoff_backend* backend) { delete reinterpret_cast<Instance*>(backend); }

  static handoff_status begin(handoff_backend* backend, const handoff_request* request, handoff_turn* turn,
                              handoff_exchange** out) {
    auto* instance = reinterpret_cast<Instance*>(backend);
    try {
      Turn actions(instance->host, turn);
      auto running = std::make_unique<Running>();
      running->host = instance->host;
      running->exchange = instance->backend.begin(*request, actions);
      *out = reinterpret_cast<handoff_exchange*>(running.release());
      return HANDOFF_OK;
    } catch (...) {
      return HANDOFF_FAILED;
    }
  }

  static handoff_status event(handoff_exchange* exchange, const handoff_event* event, handoff_turn* turn) {
    auto* running = reinterpret_cast<Running*>(exchange);
    try {
      if (running->exchange == nullptr) return HANDOFF_OK;  // begin() settled everything
      Turn actions(running->host, turn);
      running->exchange->on_event(*event, actions);
      return HANDOFF_OK;
    } catch (...) {
      return HANDOFF_FAILED;
    }
  }

  static void end(handoff_exchange* exchange) { delete reinterpret_cast<Running*>(exchange); }

  static constexpr handoff_backend_api table(const Declaration& declared) {
    handoff_backend_api api{};
    api.struct_size = sizeof(api);
    api.abi_major = HANDOFF_ABI_MAJOR;
    api.abi_minor = HANDOFF_ABI_MINOR;
    api.name = bytes(declared.name);
    api.protocol = bytes(declared.protocol);
    api.routes = declared.routes.data();
    api.route_count = declared.routes.size();
    api.reserved_fields = declared.reserved_fields.data();
    api.reserved_field_count = declared.reserved_fields.size();
    api.config_keys = declared.config_keys.data();
    api.config_key_count = declared.config_keys.size();
    api.health_path = bytes(declared.health_path);
    api.health_interval_ms = declared.health_interval_ms;
    api.engine_idle_ms = declared.engine_idle_ms;
    api.create = &create;
    api.destroy = &destroy;
    api.begin = &begin;
    api.event = &event;
    api.end = &end;
    api.flags = declared.flags;
    return api;
  }
};

}  // namespace handoff::sdk

/// Exports the entry symbol for a Backend class and its constant Declaration.
#define HANDOFF_DEFINE_BACKEND(BackendClass, declaration)                                                  \
  extern "C" HANDOFF_EXPORT const handoff_backend_api* handoff_backend_get(std::uint32_t, std::uint32_t) { \
    static constexpr handoff_backend_api table = ::handoff::sdk::Glue<BackendClass>::table(declaration);   \
    return &table;                                                                                         \
  }
