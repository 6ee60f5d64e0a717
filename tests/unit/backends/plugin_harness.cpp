#include "tests/unit/backends/plugin_harness.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <stdexcept>

struct handoff_turn {
  handoff::plugin_test::Exchange* exchange;
};

namespace handoff::plugin_test {
namespace {

std::string to_string(handoff_bytes bytes) {
  return bytes.size == 0 ? std::string{} : std::string(bytes.data, bytes.size);
}
handoff_bytes to_bytes(std::string_view text) {
  return {text.data(), text.size()};
}

std::vector<Header> to_headers(const handoff_header* headers, std::size_t count) {
  std::vector<Header> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back({to_string(headers[i].name), to_string(headers[i].value)});
  }
  return out;
}
std::vector<handoff_header> to_abi(const std::vector<Header>& headers) {
  std::vector<handoff_header> out;
  for (const auto& header : headers) out.push_back({to_bytes(header.name), to_bytes(header.value)});
  return out;
}

bool is_header(const Header& header) {
  const auto token = [](unsigned char c) { return c > ' ' && c < 0x7f && c != ':'; };
  const auto text = [](unsigned char c) { return (c >= ' ' && c != 0x7f) || c == '\t'; };
  return !header.name.empty() && std::all_of(header.name.begin(), header.name.end(), token) &&
         std::all_of(header.value.begin(), header.value.end(), text);
}
bool is_label(std::string_view name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !name.empty() && std::all_of(name.begin(), name.end(), allowed);
}

std::uint32_t kind_to_abi(json::ValueKind kind) {
  switch (kind) {
    case json::ValueKind::object:
      return HANDOFF_JSON_OBJECT;
    case json::ValueKind::array:
      return HANDOFF_JSON_ARRAY;
    case json::ValueKind::string:
      return HANDOFF_JSON_STRING;
    case json::ValueKind::number:
      return HANDOFF_JSON_NUMBER;
    case json::ValueKind::literal_true:
      return HANDOFF_JSON_TRUE;
    case json::ValueKind::literal_false:
      return HANDOFF_JSON_FALSE;
    case json::ValueKind::null:
      return HANDOFF_JSON_NULL;
    case json::ValueKind::other:
      return HANDOFF_JSON_OTHER;
  }
  return HANDOFF_JSON_OTHER;
}

/// Scans `text` and lists its members in `members`; both scan and list must outlive the result.
handoff_object scan_object(std::string_view text, json::ObjectScan& scan,
                           std::vector<handoff_member>& members) {
  handoff_object out{};
  out.struct_size = sizeof(out);
  out.text = to_bytes(text);
  switch (scan.scan(text)) {
    case json::ScanStatus::object:
      out.text_kind = HANDOFF_TEXT_OBJECT;
      break;
    case json::ScanStatus::not_an_object:
      out.text_kind = HANDOFF_TEXT_NOT_OBJECT;
      return out;
    default:
      out.text_kind = text.empty() ? HANDOFF_TEXT_NOT_OBJECT : HANDOFF_TEXT_MALFORMED;
      return out;
  }
  for (const auto& member : scan.members()) {
    members.push_back({to_bytes(member.name), member.key_begin, member.value_begin, member.value_end,
                       kind_to_abi(member.kind), 0});
  }
  out.members = members.data();
  out.member_count = members.size();
  out.open_brace = scan.open_brace();
  out.close_brace = scan.close_brace();
  return out;
}

}  // namespace

std::optional<std::string> Leg::header(std::string_view wanted) const {
  for (const auto& field : headers) {
    if (field.name == wanted) return field.value;
  }
  return std::nullopt;
}

std::string_view to_text(Action::Kind kind) {
  constexpr std::array<std::string_view, 9> kNames{
      "start", "cancel", "relay", "respond", "write", "fail", "fail_with_leg", "decode_only", "background"};
  return kNames.at(static_cast<std::size_t>(kind));
}

Event leg_done(std::uint32_t leg, std::uint32_t status, std::string body) {
  return {.kind = HANDOFF_EVENT_LEG_DONE,
          .leg = leg,
          .status = status,
          .body = std::move(body),
          .flags = HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED};
}
Event leg_failed(std::uint32_t leg, std::uint32_t cause, std::uint32_t flags) {
  return {.kind = HANDOFF_EVENT_LEG_FAILED, .leg = leg, .cause = cause, .flags = flags};
}
Event ended(std::uint32_t outcome, std::uint32_t flags) {
  return {.kind = HANDOFF_EVENT_END, .leg = HANDOFF_NO_LEG, .flags = flags, .outcome = outcome};
}

Plugin::Plugin(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<handoff_backend_entry>(dlsym(library, HANDOFF_BACKEND_SYMBOL));
  if (entry == nullptr) throw std::runtime_error(path + " exports no " + HANDOFF_BACKEND_SYMBOL);
  api_ = entry(HANDOFF_ABI_MAJOR, HANDOFF_ABI_MINOR);
  if (api_ == nullptr || api_->abi_major != HANDOFF_ABI_MAJOR || api_->abi_minor > HANDOFF_ABI_MINOR) {
    throw std::runtime_error(path + " is for another ABI");
  }
}

// ---------------------------------------------------------------------------------------------------- Host

/// The functions of the table that take a turn.
struct TurnCalls {
  static handoff_status start(handoff_turn* turn, const handoff_leg* leg) {
    auto& exchange = *turn->exchange;
    if (exchange.in_end_ || exchange.answered_) {
      exchange.refuse("start", "the exchange is over or answered");
      return HANDOFF_WRONG_STATE;
    }
    auto read = exchange.read_leg(*leg, "start");
    if (!read) return HANDOFF_INVALID;
    const bool used = exchange.running_.count(read->id) != 0 || exchange.finished_.count(read->id) != 0;
    if (used || exchange.running_.size() + exchange.finished_.size() >= HANDOFF_MAX_LEGS) {
      exchange.refuse("start", used ? "leg id used twice" : "too many legs");
      return HANDOFF_INVALID;
    }
    if (read->target == HANDOFF_TARGET_PREFILL && !exchange.has_prefill_) {
      exchange.refuse("start", "no prefill endpoint");
      return HANDOFF_INVALID;
    }
    for (const auto& [id, other] : exchange.running_) {
      if (read->reply == HANDOFF_REPLY_RELAY && other.reply == HANDOFF_REPLY_RELAY) {
        exchange.refuse("start", "two legs would be the answer");
        return HANDOFF_INVALID;
      }
    }
    exchange.running_[read->id] = *read;
    exchange.actions_.push_back({.kind = Action::Kind::start, .leg = *read, .leg_id = read->id});
    return HANDOFF_OK;
  }

  static handoff_status cancel(handoff_turn* turn, std::uint32_t leg) {
    auto& exchange = *turn->exchange;
    const auto found = exchange.running_.find(leg);
    if (exchange.in_end_ || found == exchange.running_.end()) {
      exchange.refuse("cancel", "no such leg runs");
      return HANDOFF_INVALID;
    }
    exchange.finished_.insert(*found);
    exchange.running_.erase(found);
    exchange.actions_.push_back({.kind = Action::Kind::cancel, .leg_id = leg});
    return HANDOFF_OK;
  }

  static handoff_status relay(handoff_turn* turn, std::uint32_t leg) {
    auto& exchange = *turn->exchange;
    if (!exchange.may_answer("relay")) return HANDOFF_WRONG_STATE;
    const auto running = exchange.running_.find(leg);
    const auto finished = exchange.finished_.find(leg);
    const bool held = running != exchange.running_.end() && running->second.reply == HANDOFF_REPLY_HOLD;
    const bool complete =
        finished != exchange.finished_.end() && exchange.complete_.contains(leg) &&
        (finished->second.reply == HANDOFF_REPLY_COLLECT || finished->second.reply == HANDOFF_REPLY_HOLD);
    if (!held && !complete) {
      exchange.refuse("relay", "neither a held nor a collected leg");
      return HANDOFF_INVALID;
    }
    exchange.answered_ = true;
    exchange.relayed_ = leg;
    exchange.actions_.push_back({.kind = Action::Kind::relay, .leg_id = leg});
    return HANDOFF_OK;
  }

  static handoff_status respond(handoff_turn* turn, const handoff_reply* reply) {
    auto& exchange = *turn->exchange;
    if (!exchange.may_answer("respond")) return HANDOFF_WRONG_STATE;
    Action action{.kind = Action::Kind::respond, .status = reply->status};
    action.headers = to_headers(reply->headers, reply->header_count);
    if (!exchange.read_pieces(reply->body, reply->piece_count, action.body)) return HANDOFF_INVALID;
    exchange.answered_ = true;
    exchange.more_follows_ = reply->more;
    if (!reply->more) exchange.settle();
    exchange.actions_.push_back(std::move(action));
    return HANDOFF_OK;
  }

  static handoff_status write(handoff_turn* turn, const handoff_piece* pieces, std::size_t count, bool last) {
    auto& exchange = *turn->exchange;
    if (exchange.in_end_ || !exchange.more_follows_) {
      exchange.refuse("write", "no answer is being written");
      return HANDOFF_WRONG_STATE;
    }
    Action action{.kind = Action::Kind::write};
    if (!exchange.read_pieces(pieces, count, action.body)) return HANDOFF_INVALID;
    if (last) {
      exchange.more_follows_ = false;
      exchange.settle();
    }
    exchange.actions_.push_back(std::move(action));
    return HANDOFF_OK;
  }

  static handoff_status fail(handoff_turn* turn, const handoff_failure* failure) {
    auto& exchange = *turn->exchange;
    // An answer that was begun can still be broken.
    if (!exchange.more_follows_ && !exchange.may_answer("fail")) return HANDOFF_WRONG_STATE;
    exchange.more_follows_ = false;
    if (failure->status < 400 || failure->status > 599 || failure->code.size == 0 ||
        failure->message.size == 0) {
      exchange.refuse("fail", "status, code or message out of range");
      return HANDOFF_INVALID;
    }
    exchange.settle();
    exchange.actions_.push_back({.kind = Action::Kind::fail,
                                 .leg_id = failure->leg,
                                 .status = failure->status,
                                 .code = to_string(failure->code),
                                 .message = to_string(failure->message)});
    return HANDOFF_OK;
  }

  static handoff_status fail_with_leg(handoff_turn* turn, std::uint32_t leg) {
    auto& exchange = *turn->exchange;
    if (!exchange.may_answer("fail_with_leg")) return HANDOFF_WRONG_STATE;
    if (exchange.finished_.count(leg) == 0) {
      exchange.refuse("fail_with_leg", "the leg has not ended");
      return HANDOFF_INVALID;
    }
    exchange.settle();
    exchange.actions_.push_back({.kind = Action::Kind::fail_with_leg, .leg_id = leg});
    return HANDOFF_OK;
  }

  static handoff_status decode_only(handoff_turn* turn, handoff_bytes reason, const handoff_header* headers,
                                    std::size_t header_count) {
    auto& exchange = *turn->exchange;
    if (!exchange.may_answer("decode_only")) return HANDOFF_WRONG_STATE;
    if (exchange.backend_.needs_prefill() && exchange.has_prefill_) {
      exchange.refuse("decode_only", "the engine can't prefill");
      return HANDOFF_WRONG_STATE;
    }
    Action action{.kind = Action::Kind::decode_only, .reason = to_string(reason)};
    action.headers = to_headers(headers, header_count);
    if (!is_label(action.reason) || !std::all_of(action.headers.begin(), action.headers.end(), is_header)) {
      exchange.refuse("decode_only", "reason or header malformed");
      return HANDOFF_INVALID;
    }
    exchange.settle();
    exchange.actions_.push_back(std::move(action));
    return HANDOFF_OK;
  }

  static handoff_status background(handoff_turn* turn, const handoff_leg* leg) {
    auto& exchange = *turn->exchange;
    auto read = exchange.read_leg(*leg, "background");
    if (!read) return HANDOFF_INVALID;
    if (!is_label(read->name)) {
      exchange.refuse("background", "needs a name to be counted by");
      return HANDOFF_INVALID;
    }
    exchange.actions_.push_back({.kind = Action::Kind::background, .leg = std::move(*read)});
    return HANDOFF_OK;
  }
};

Host::Host(std::uint32_t seed) : random_(seed) {
  table_.self = this;
  table_.struct_size = sizeof(handoff_host_api);
  table_.abi_major = HANDOFF_ABI_MAJOR;
  table_.abi_minor = HANDOFF_ABI_MINOR;
  table_.json = &Host::json;
  table_.random = &Host::random;
  table_.warn = &Host::warn;
  table_.count = &Host::count;
  table_.start = &TurnCalls::start;
  table_.cancel = &TurnCalls::cancel;
  table_.relay = &TurnCalls::relay;
  table_.respond = &TurnCalls::respond;
  table_.write = &TurnCalls::write;
  table_.fail = &TurnCalls::fail;
  table_.fail_with_leg = &TurnCalls::fail_with_leg;
  table_.decode_only = &TurnCalls::decode_only;
  table_.background = &TurnCalls::background;
}

Host& Host::from(const handoff_host_api* api) {
  return *static_cast<const Table*>(api)->self;
}

handoff_status Host::json(const handoff_host_api* api, handoff_bytes text, handoff_object* out) {
  auto& host = from(api);
  if (host.scans_.size() >= HANDOFF_MAX_SCANS) {
    host.refusals.emplace_back("json: too many scans in one entry");
    return HANDOFF_INVALID;
  }
  auto& scan = *host.scans_.emplace_back(std::make_unique<Scan>());
  *out = scan_object(text.size == 0 ? std::string_view{} : std::string_view{text.data, text.size}, scan.scan,
                     scan.members);
  return HANDOFF_OK;
}

void Host::random(const handoff_host_api* api, void* out, std::size_t size) {
  auto* bytes = static_cast<unsigned char*>(out);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(from(api).random_());
}

void Host::warn(const handoff_host_api* api, handoff_bytes key, handoff_bytes message) {
  from(api).warnings.emplace_back(to_string(key), to_string(message));
}

void Host::count(const handoff_host_api* api, handoff_bytes name) {
  const auto text = to_string(name);
  if (!is_label(text)) from(api).refusals.push_back("count: " + text);
  ++from(api).counts[text];
}

// ------------------------------------------------------------------------------------------------- Backend

Backend::Backend(const Plugin& plugin, Host& host, const std::map<std::string, std::string>& settings)
    : plugin_(plugin), host_(host) {
  std::vector<std::pair<std::string, std::string>> values;
  for (std::size_t i = 0; i < plugin.api().config_key_count; ++i) {
    const auto& key = plugin.api().config_keys[i];
    const auto given = settings.find(to_string(key.name));
    values.emplace_back(to_string(key.name),
                        given == settings.end() ? to_string(key.default_value) : given->second);
  }
  std::vector<handoff_setting> abi;
  for (const auto& [name, value] : values) abi.push_back({to_bytes(name), to_bytes(value)});
  handoff_config config{};
  config.struct_size = sizeof(config);
  config.settings = abi.data();
  config.setting_count = abi.size();

  std::array<char, 256> error{};
  handoff_backend* made = nullptr;
  if (plugin.api().create(host.api(), &config, &made, error.data(), error.size()) == HANDOFF_OK) {
    backend_ = made;
  } else {
    error_ = error.data();
  }
}

Backend::~Backend() {
  if (backend_ != nullptr) plugin_.api().destroy(backend_);
}

// ------------------------------------------------------------------------------------------------ Exchange

/// What the plugin may look at until end().
struct Exchange::Owned {
  Request request;
  json::ObjectScan scan;
  std::vector<handoff_member> members;
  std::vector<handoff_header> headers;
};

Exchange::Exchange(Backend& backend, const Request& request)
    : backend_(backend), owned_(std::make_unique<Owned>()), has_prefill_(request.prefill.has_value()) {
  auto& own = *owned_;
  own.request = request;
  if (own.request.target.empty()) own.request.target = own.request.path;
  own.headers = to_abi(own.request.headers);
  // The struct itself goes when begin() returns: only what it points to is promised to stay.
  auto abi = std::make_unique<handoff_request>();
  abi->struct_size = sizeof(*abi);
  abi->has_prefill = request.prefill ? 1 : 0;
  abi->method = to_bytes(own.request.method);
  abi->target = to_bytes(own.request.target);
  abi->path = to_bytes(own.request.path);
  abi->headers = own.headers.data();
  abi->header_count = own.headers.size();
  abi->body = scan_object(own.request.body, own.scan, own.members);
  if (own.request.prefill) {
    abi->prefill_host = to_bytes(own.request.prefill->host);
    abi->prefill_port = own.request.prefill->port;
  }
  abi->request_id = to_bytes(own.request.request_id);
  abi->now_ms = backend_.host_.now_ms;
  begin_actions_ = run([&](handoff_turn* turn) {
    return backend_.plugin_.api().begin(backend_.backend_, abi.get(), turn, &exchange_);
  });
  begin_status_ = last_status_;
  if (begin_status_ != HANDOFF_OK) over_ = true;
}

Exchange::~Exchange() {
  if (!over_) deliver(ended(HANDOFF_OUTCOME_CLIENT_GONE));
  if (begin_status_ == HANDOFF_OK) backend_.plugin_.api().end(exchange_);
}

std::vector<Action> Exchange::deliver(const Event& event) {
  const bool ends_leg = event.kind == HANDOFF_EVENT_LEG_DONE || event.kind == HANDOFF_EVENT_LEG_FAILED;
  if (const auto leg = running_.find(event.leg); ends_leg && leg != running_.end()) {
    const bool relayed = leg->second.reply == HANDOFF_REPLY_RELAY;
    if (relayed && event.kind == HANDOFF_EVENT_LEG_DONE) answered_ = true;
    if (event.kind == HANDOFF_EVENT_LEG_DONE) complete_.insert(event.leg);
    if (event.kind == HANDOFF_EVENT_LEG_FAILED && relayed_ == event.leg)
      answered_ = false;  // nothing was said yet
    finished_.insert(*leg);
    running_.erase(leg);
  }
  if ((event.flags & HANDOFF_CLIENT_STARTED) != 0) answered_ = true;
  in_end_ = event.kind == HANDOFF_EVENT_END;

  // Borrowed for the call only: every part is a heap block that is gone afterwards.
  auto copy = std::make_unique<Event>(event);
  auto headers = std::make_unique<std::vector<handoff_header>>(to_abi(copy->headers));
  auto body = std::make_unique<char[]>(event.body.size());
  std::memcpy(body.get(), event.body.data(), event.body.size());
  auto abi = std::make_unique<handoff_event>();
  abi->struct_size = sizeof(*abi);
  abi->kind = event.kind;
  abi->leg = event.leg;
  abi->cause = event.cause;
  abi->outcome = event.outcome;
  abi->flags = event.flags;
  abi->status = event.status;
  abi->now_ms = backend_.host_.now_ms;
  abi->unix_ms = 1'700'000'000'000;
  abi->headers = headers->data();
  abi->header_count = headers->size();
  if (!event.body.empty()) abi->body = {body.get(), event.body.size()};
  auto actions =
      run([&](handoff_turn* turn) { return backend_.plugin_.api().event(exchange_, abi.get(), turn); });
  if (in_end_) over_ = true;
  return actions;
}

std::vector<Action> Exchange::run(const std::function<handoff_status(handoff_turn*)>& entry) {
  const auto turn = std::make_unique<handoff_turn>(handoff_turn{this});
  last_status_ = entry(turn.get());
  backend_.host_.scans_.clear();
  return std::exchange(actions_, {});
}

bool Exchange::refuse(std::string_view call, std::string_view why) {
  backend_.host_.refusals.push_back(std::string(call) + ": " + std::string(why));
  return false;
}

bool Exchange::may_answer(std::string_view call) {
  if (in_end_) return refuse(call, "the exchange is over");
  return answered_ ? refuse(call, "the client has its answer") : true;
}

/// The client has its answer and every leg is given up.
void Exchange::settle() {
  answered_ = true;
  finished_.merge(running_);
  running_.clear();
}

bool Exchange::read_pieces(const handoff_piece* pieces, std::size_t count, std::string& out) {
  const std::string& body = owned_->request.body;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& piece = pieces[i];
    if (piece.data != nullptr) {
      out.append(piece.data, piece.size);
    } else if (piece.offset <= body.size() && piece.size <= body.size() - piece.offset) {
      out.append(body, piece.offset, piece.size);
    } else {
      return refuse("pieces", "range beyond the request body");
    }
  }
  return true;
}

std::optional<Leg> Exchange::read_leg(const handoff_leg& leg, std::string_view call) {
  Leg out{.id = leg.id,
          .role = leg.role,
          .target = leg.target,
          .port = leg.port,
          .reply = leg.reply,
          .flags = leg.flags,
          .linger_ms = leg.linger_ms,
          .deadline_ms = leg.deadline_ms,
          .reply_limit = leg.reply_limit,
          .method = to_string(leg.method),
          .path = to_string(leg.path),
          .name = to_string(leg.name),
          .headers = to_headers(leg.headers, leg.header_count),
          .body = {}};
  const bool in_range = leg.struct_size == sizeof(leg) && leg.role <= HANDOFF_ROLE_AUXILIARY &&
                        leg.target <= HANDOFF_TARGET_LOCAL && leg.port <= 65535 &&
                        leg.reply <= HANDOFF_REPLY_DISCARD && leg.id != HANDOFF_NO_LEG;
  if (!in_range || !std::all_of(out.headers.begin(), out.headers.end(), is_header)) {
    refuse(call, "a field is out of range");
    return std::nullopt;
  }
  if ((leg.flags & HANDOFF_LEG_CLIENT_BODY) != 0) {
    out.body = owned_->request.body;
  } else if (!read_pieces(leg.body, leg.piece_count, out.body)) {
    return std::nullopt;
  }
  return out;
}

}  // namespace handoff::plugin_test
