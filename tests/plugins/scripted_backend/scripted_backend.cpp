// A backend that does what the request's `x-script` header says, so that a test can ask the sidecar for any
// sequence of actions. README.md has the language.
#include <array>
#include <charconv>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "shared/backend_abi/backend_sdk.hpp"

namespace {
namespace sdk = handoff::sdk;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto at = text.find(separator);
    auto part = text.substr(0, at);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.push_back(part);
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::uint32_t number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) throw std::invalid_argument("not a number");
  return value;
}

std::uint32_t index_of(std::string_view word, std::span<const std::string_view> words) {
  for (std::uint32_t i = 0; i < words.size(); ++i) {
    if (words[i] == word) return i;
  }
  throw std::invalid_argument("unknown word");
}

constexpr std::array<std::string_view, 3> kRoles{"prefill", "decode", "auxiliary"};
constexpr std::array<std::string_view, 5> kReplies{"collect", "hold", "relay", "stream", "discard"};

/// start:ID:ROLE:REPLY[:OPTION...]; options: sent, connected, head, body, resend, local, linger=MS,
/// limit=BYTES
void start(const std::vector<std::string_view>& words, sdk::Turn& turn) {
  sdk::Leg leg;
  leg.id = number(words.at(1));
  leg.role = index_of(words.at(2), kRoles);
  leg.target = leg.role == HANDOFF_ROLE_PREFILL ? HANDOFF_TARGET_PREFILL : HANDOFF_TARGET_LOCAL;
  leg.reply = index_of(words.at(3), kReplies);
  leg.flags = HANDOFF_LEG_CLIENT_BODY;
  for (std::size_t i = 4; i < words.size(); ++i) {
    const auto option = words[i];
    if (option == "sent") leg.flags |= HANDOFF_LEG_WANT_SENT;
    if (option == "connected") leg.flags |= HANDOFF_LEG_WANT_CONNECTED;
    if (option == "head") leg.flags |= HANDOFF_LEG_WANT_HEAD;
    if (option == "body") leg.flags |= HANDOFF_LEG_WANT_BODY;
    if (option == "resend") leg.flags |= HANDOFF_LEG_MAY_RESEND;
    if (option == "local") leg.target = HANDOFF_TARGET_LOCAL;
    if (option.starts_with("linger=")) leg.linger_ms = number(option.substr(7));
    if (option.starts_with("limit=")) leg.reply_limit = number(option.substr(6));
  }
  turn.start(leg);
}

/// Tells the decode engine: POST /note/TEXT in the background.
void note(std::string_view text, sdk::Turn& turn) {
  const auto path = "/note/" + std::string(text);
  sdk::Leg leg;
  leg.role = HANDOFF_ROLE_AUXILIARY;
  leg.target = HANDOFF_TARGET_LOCAL;
  leg.method = "POST";
  leg.path = path;
  leg.name = "note";
  turn.background(leg);
}

void write(std::string_view bytes, bool last, sdk::Turn& turn) {
  const std::array pieces{handoff_piece{bytes.empty() ? "" : bytes.data(), 0, bytes.size()}};
  turn.write(pieces, last);
}

class Scripted final : public sdk::Exchange {
 public:
  explicit Scripted(std::string script) : script_(std::move(script)) {}

  void on_event(const handoff_event& event, sdk::Turn& turn) override {
    constexpr std::array<std::string_view, 8> kNames{"",     "sent",   "head", "body",
                                                     "done", "failed", "end",  "connected"};
    std::string name(kNames.at(event.kind));
    if (name == "connected" && (event.flags & HANDOFF_REUSED) != 0) name = "reused";
    if (event.kind == HANDOFF_EVENT_END) {
      run(name, event, turn);
    } else {
      run(name + "." + std::to_string(event.leg), event, turn);
    }
  }

  /// Carries out the actions of `trigger=action,action;...`. One that ends in `!` is good for one event only.
  void run(std::string_view trigger, const handoff_event& event, sdk::Turn& turn) {
    for (const auto rule : split(script_, ';')) {
      const auto equals = rule.find('=');
      if (equals == std::string_view::npos) continue;
      auto name = rule.substr(0, equals);
      const bool once = name.ends_with('!');
      if (once) name.remove_suffix(1);
      if (name != trigger) continue;
      if (once && was_run(rule)) continue;
      for (const auto action : split(rule.substr(equals + 1), ',')) act(action, event, turn);
    }
  }

 private:
  bool was_run(std::string_view rule) {
    for (const auto& done : done_) {
      if (done == rule) return true;
    }
    done_.emplace_back(rule);
    return false;
  }

  static void act(std::string_view action, const handoff_event& event, sdk::Turn& turn) {
    const auto words = split(action, ':');
    const auto verb = words.front();
    constexpr std::array text_plain{sdk::header("content-type", "text/plain")};
    if (verb == "start") {
      start(words, turn);
    } else if (verb == "cancel") {
      turn.cancel(number(words.at(1)));
    } else if (verb == "relay") {
      turn.relay(number(words.at(1)));
    } else if (verb == "fail_with_leg") {
      turn.fail_with_leg(number(words.at(1)));
    } else if (verb == "fail") {
      turn.fail({.status = number(words.at(1)), .code = "scripted", .message = "As the script says."});
    } else if (verb == "respond") {
      turn.respond(number(words.at(1)), text_plain, {}, /*more=*/true);
    } else if (verb == "write") {
      write(words.at(1), false, turn);
    } else if (verb == "fill") {
      write(std::string(number(words.at(1)), 'x'), false, turn);
    } else if (verb == "echo") {
      write(sdk::view(event.body), false, turn);
    } else if (verb == "last") {
      write({}, true, turn);
    } else if (verb == "decode_only") {
      turn.decode_only("scripted");
    } else if (verb == "note") {
      note(words.at(1), turn);
    } else if (verb == "note_size") {
      note(std::to_string(event.body.size), turn);
    } else if (verb == "throw") {
      throw std::runtime_error("as the script says");
    } else if (verb != "nothing") {
      throw std::invalid_argument("unknown action");
    }
  }

  std::string script_;
  std::vector<std::string> done_;
};

class ScriptedBackend {
 public:
  ScriptedBackend(sdk::Host, const sdk::Config&) {}

  std::unique_ptr<sdk::Exchange> begin(const handoff_request& request, sdk::Turn& turn) {
    const auto script = sdk::find_header(request.headers, request.header_count, "x-script");
    auto exchange = std::make_unique<Scripted>(std::string(script.value_or("begin=fail:400")));
    exchange->run("begin", handoff_event{}, turn);
    return exchange;
  }
};

constexpr std::array kRoutes{handoff_route{sdk::bytes("POST"), sdk::bytes("/v1/completions")}};

#ifdef NEEDS_PREFILL
constexpr std::uint32_t kFlags = HANDOFF_BACKEND_NEEDS_PREFILL;
constexpr std::string_view kName = "scripted_needy";
#else
constexpr std::uint32_t kFlags = 0;
constexpr std::string_view kName = "scripted";
#endif

constexpr sdk::Declaration kDeclaration{
    .name = kName, .protocol = "scripted-1", .routes = kRoutes, .flags = kFlags};

}  // namespace

HANDOFF_DEFINE_BACKEND(ScriptedBackend, kDeclaration)
