#include "fault_rules.hpp"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>

namespace handoff::mock {
namespace {

bool same_name(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

const std::string* find_header(const HeaderList& headers, const std::string& name) {
  for (const auto& [key, value] : headers) {
    if (same_name(key, name)) return &value;
  }
  return nullptr;
}

HeaderList header_list(const Json& text) {
  HeaderList headers;
  if (!text.contains("headers")) return headers;
  const Json& list = text.at("headers");
  if (list.is_object()) {
    for (const auto& [name, value] : list.items()) headers.emplace_back(name, value.get<std::string>());
  } else {
    for (const Json& one : list)
      headers.emplace_back(one.at(0).get<std::string>(), one.at(1).get<std::string>());
  }
  return headers;
}

CannedReply canned(const Json& text, int status) {
  CannedReply reply;
  reply.status = text.value("status", status);
  if (reply.status < 100 || reply.status > 999) throw std::invalid_argument("status must have three digits");
  reply.content_type = text.value("content_type", reply.content_type);
  reply.headers = header_list(text);
  if (text.contains("body")) {
    const Json& body = text.at("body");
    reply.body = body.is_string() ? body.get<std::string>() : dump(body);
  }
  return reply;
}

std::size_t size_of(const Json& text, const char* name, std::size_t fallback, std::size_t most) {
  const auto size = text.value(name, fallback);
  if (size < 1 || size > most) throw std::invalid_argument(std::string(name) + " is out of range");
  return size;
}

CannedReply huge(const Json& text) {
  CannedReply reply;
  reply.content_type = text.value("content_type", reply.content_type);
  const std::size_t bytes = size_of(text, "bytes", std::size_t{1} << 20, std::size_t{1} << 30);
  reply.body = bytes < 2 ? std::string(bytes, 'x') : "\"" + std::string(bytes - 2, 'x') + "\"";
  reply.chunked = text.value("chunked", false);
  return reply;
}

ByteCut byte_cut(const Json& text, CutKind kind) {
  const bool in_body = text.contains("at_body");
  return {kind, text.at(in_body ? "at_body" : "at").get<std::uint64_t>(), in_body};
}

Framing framing_from(const std::string& kind) {
  static const std::map<std::string, Framing> kinds{
      {"bad_chunk_size", Framing::kBadChunkSize},  {"chunked_and_length", Framing::kChunkedAndLength},
      {"short_length", Framing::kShortLength},     {"long_length", Framing::kLongLength},
      {"garbage_status", Framing::kGarbageStatus}, {"oversize_head", Framing::kOversizeHead},
      {"no_final_chunk", Framing::kNoFinalChunk}};
  return kinds.at(kind);
}

std::chrono::milliseconds milliseconds_of(const Json& text, const char* name) {
  return std::chrono::milliseconds(text.at(name).get<std::int64_t>());
}

using Effect = std::function<void(const Json&, FaultPlan&)>;

// The table of actions. `refuse` acts on connections and has no effect on a plan.
const std::map<std::string, Effect>& effects() {
  static const std::map<std::string, Effect> table{
      {"refuse", [](const Json&, FaultPlan&) {}},
      {"stall", [](const Json&, FaultPlan& p) { p.stall = true; }},
      {"die", [](const Json&, FaultPlan& p) { p.die = true; }},
      {"status", [](const Json& t, FaultPlan& p) { p.reply = canned(t, 503); }},
      {"reject", [](const Json& t, FaultPlan& p) { p.reject = t.value("status", 400); }},
      {"engine_error",
       [](const Json& t, FaultPlan& p) {
         p.engine_error = EngineError{t.value("status", 500), t.value("message", "failed by a fault rule"),
                                      t.value("retryable", false)};
       }},
      {"redirect",
       [](const Json& t, FaultPlan& p) {
         p.reply = canned(t, 307);
         p.reply->headers.emplace_back("Location", t.at("location").get<std::string>());
       }},
      {"early_response", [](const Json& t, FaultPlan& p) { p.early = canned(t, 413); }},
      {"informational",
       [](const Json& t, FaultPlan& p) {
         p.informational =
             InformationalHeads{t.value("status", 103), t.value("count", std::int64_t{1}), header_list(t)};
       }},
      {"delay",
       [](const Json& t, FaultPlan& p) {
         (t.value("when", "before") == "after" ? p.delay_after : p.delay_before) = milliseconds_of(t, "ms");
       }},
      {"reset_at", [](const Json& t, FaultPlan& p) { p.cut = byte_cut(t, CutKind::kReset); }},
      {"close_at", [](const Json& t, FaultPlan& p) { p.cut = byte_cut(t, CutKind::kClose); }},
      {"stall_at", [](const Json& t, FaultPlan& p) { p.cut = byte_cut(t, CutKind::kStall); }},
      {"trickle",
       [](const Json& t, FaultPlan& p) {
         p.trickle = Trickle{size_of(t, "bytes", 1, std::size_t{1} << 30), milliseconds_of(t, "every_ms"),
                             size_of(t, "most", SIZE_MAX, SIZE_MAX)};
       }},
      {"framing",
       [](const Json& t, FaultPlan& p) {
         p.framing = framing_from(t.at("kind").get<std::string>());
         p.head_bytes = size_of(t, "bytes", 65536, std::size_t{64} << 20);
       }},
      {"huge_body", [](const Json& t, FaultPlan& p) { p.reply = huge(t); }},
      {"non_json",
       [](const Json& t, FaultPlan& p) {
         p.reply = canned(t, 200);
         p.reply->content_type = t.value("content_type", "text/html");
         if (!t.contains("body")) p.reply->body = "<html><body>not what you asked for</body></html>";
       }},
      {"sse", [](const Json&, FaultPlan& p) { p.sse = true; }},
      {"params_patch", [](const Json& t, FaultPlan& p) { p.params_patch = t.at("patch"); }},
      {"params_raw", [](const Json& t, FaultPlan& p) { p.params_raw = t.at("raw").get<std::string>(); }},
      {"params_remove", [](const Json&, FaultPlan& p) { p.params_remove = true; }},
      {"close_idle", [](const Json&, FaultPlan& p) { p.close_idle = true; }},
      {"http10", [](const Json&, FaultPlan& p) { p.http10 = true; }},
      {"no_length", [](const Json&, FaultPlan& p) { p.no_length = true; }},
      {"gzip",
       [](const Json& t, FaultPlan& p) {
         p.gzip = true;
         p.gzip_always = t.value("always", false);
       }},
  };
  return table;
}

// Members left at their defaults take the value of `more`, so the first rule of a kind wins.
void merge(const FaultPlan& more, FaultPlan& plan) {
  const FaultPlan plain;
  plan.any = true;
  plan.stall |= more.stall;
  plan.die |= more.die;
  if (!plan.reply) plan.reply = more.reply;
  if (!plan.early) plan.early = more.early;
  if (!plan.reject) plan.reject = more.reject;
  if (!plan.engine_error) plan.engine_error = more.engine_error;
  if (!plan.informational) plan.informational = more.informational;
  if (plan.delay_before.count() == 0) plan.delay_before = more.delay_before;
  if (plan.delay_after.count() == 0) plan.delay_after = more.delay_after;
  if (!plan.cut) plan.cut = more.cut;
  if (!plan.trickle) plan.trickle = more.trickle;
  if (plan.framing == Framing::kSound) {
    plan.framing = more.framing;
    plan.head_bytes = more.head_bytes;
  }
  plan.sse |= more.sse;
  if (!plan.params_patch) plan.params_patch = more.params_patch;
  if (!plan.params_raw) plan.params_raw = more.params_raw;
  plan.params_remove |= more.params_remove;
  plan.close_idle |= more.close_idle;
  plan.http10 |= more.http10;
  plan.no_length |= more.no_length;
  plan.gzip |= more.gzip;
  plan.gzip_always |= more.gzip_always;
}

bool matches(const Json& match, const FaultSubject& subject) {
  if (!subject.path.starts_with(match.value("path", ""))) return false;
  const std::string method = match.value("method", "");
  if (!method.empty() && method != subject.method) return false;
  const std::string role = match.value("role", "any");
  if (role != "any" && (!subject.leg || role != leg_name(*subject.leg))) return false;
  if (match.contains("request_id")) {
    const std::string* id = find_header(*subject.headers, "x-request-id");
    if (!id || *id != match.at("request_id").get<std::string>()) return false;
  }
  if (match.contains("header")) {
    const Json& header = match.at("header");
    const std::string* value = find_header(*subject.headers, header.at("name").get<std::string>());
    if (!value || (header.contains("value") && *value != header.at("value").get<std::string>())) return false;
  }
  return true;
}

// Finds type mistakes when the rule is posted, not when it is first tried on a request.
void check_match(const Json& match) {
  static const std::set<std::string> known{"path", "method", "role", "request_id", "header"};
  for (const auto& [name, value] : match.items()) {
    if (!known.contains(name)) throw std::invalid_argument("unknown match member '" + name + "'");
  }
  static const std::set<std::string> roles{"any", "prefill", "decode", "plain"};
  if (!roles.contains(match.value("role", "any"))) throw std::invalid_argument("unknown role");
  const HeaderList headers{
      {"x-request-id", ""},
      {match.contains("header") ? match.at("header").at("name").get<std::string>() : "x", ""}};
  Json everything = match;
  everything.erase("role");
  everything.erase("path");
  everything.erase("method");
  match.value("path", "");
  match.value("method", "");
  matches(everything, FaultSubject{"", "", &headers, std::nullopt});
  if (match.contains("header") && match.at("header").contains("value"))
    match.at("header").at("value").get<std::string>();
}

}  // namespace

std::string FaultRules::parse_rule(const Json& text, Rule& rule) {
  if (!text.is_object()) return "a rule must be an object";
  try {
    rule.text = text;
    rule.action = text.at("action").get<std::string>();
    const auto effect = effects().find(rule.action);
    if (effect == effects().end()) return "unknown action '" + rule.action + "'";
    effect->second(text, rule.effect);
    rule.match = text.value("match", Json::object());
    if (!rule.match.is_object()) return "match must be an object";
    check_match(rule.match);
    rule.times = text.value("times", std::int64_t{-1});
    rule.skip = text.value("skip", std::int64_t{0});
    rule.probability = text.value("probability", 1.0);
  } catch (const std::exception& error) {
    return "bad rule: " + std::string(error.what());
  }
  return {};
}

std::string FaultRules::add(const Json& rules) {
  const Json list = rules.is_array() ? rules : Json::array({rules});
  std::vector<Rule> fresh;
  for (const Json& text : list) {
    Rule rule;
    if (std::string error = parse_rule(text, rule); !error.empty()) return error;
    fresh.push_back(std::move(rule));
  }
  if (rules_.size() + fresh.size() > 1000) return "too many rules";
  std::move(fresh.begin(), fresh.end(), std::back_inserter(rules_));
  return {};
}

Reply FaultRules::list() const {
  Reply list = Reply::array();
  for (const Rule& rule : rules_) {
    Reply entry(rule.text);
    entry["hits"] = rule.hits;
    entry["matches"] = rule.matches;
    list.push_back(entry);
  }
  return Reply{{"rules", list}};
}

bool FaultRules::strikes(Rule& rule) {
  ++rule.matches;
  if (rule.matches <= rule.skip) return false;
  if (rule.times >= 0 && rule.hits >= rule.times) return false;
  if (rule.probability < 1.0 && random_.roll() >= rule.probability) return false;
  ++rule.hits;
  return true;
}

bool FaultRules::refuses_connection() {
  for (Rule& rule : rules_) {
    if (rule.action == "refuse" && strikes(rule)) return true;
  }
  return false;
}

FaultPlan FaultRules::plan_for(const FaultSubject& subject) {
  FaultPlan plan;
  for (Rule& rule : rules_) {
    const bool early = rule.effect.early.has_value();
    if (rule.action == "refuse" || early == subject.leg.has_value()) continue;
    if (matches(rule.match, subject) && strikes(rule)) merge(rule.effect, plan);
  }
  return plan;
}

}  // namespace handoff::mock
