#include "epp/planning/request_facts.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "shared/json/encoding.hpp"
#include "shared/json/object_scan.hpp"
#include "shared/json/string_text.hpp"

namespace handoff::epp {
namespace {

using json::ObjectScan;
using json::ValueKind;

// In this order; the first one that is there counts.
constexpr std::array<std::string_view, 4> kSessionHeaders = {
    "x-dynamo-session-id", "x-claude-code-session-id", "thread-id", "x-session-id"};
constexpr std::string_view kMetadataPrefix = "x-dynamo-meta-";
constexpr std::size_t kLongestHint = 256;  // of ids and class names; longer ones are left out
constexpr std::uint64_t kLongestGoalMs = 3'600'000;

enum class Api : std::uint8_t { kNone, kChat, kCompletions, kSized, kVllmGenerate, kSglangGenerate };

Api api_of(const HeaderBlock& headers) {
  if (headers.first(":method") != "POST") return Api::kNone;
  std::string_view path = headers.first(":path").value_or("");
  path = path.substr(0, path.find_first_of("?#"));
  constexpr std::array<std::pair<std::string_view, Api>, 6> kApis = {{
      {"/v1/chat/completions", Api::kChat},
      {"/v1/completions", Api::kCompletions},
      {"/v1/responses", Api::kSized},
      {"/v1/messages", Api::kSized},
      {"/inference/v1/generate", Api::kVllmGenerate},
      {"/generate", Api::kSglangGenerate},
  }};
  for (const auto& [known, api] : kApis) {
    if (path == known) return api;
  }
  return Api::kNone;
}

bool is_plain_text(const HeaderBlock& headers) {
  const auto encoding = headers.first("content-encoding");
  return !encoding || trimmed(*encoding).empty() || trimmed(*encoding) == "identity";
}

std::string hint(std::string_view text) {
  return text.size() > kLongestHint ? std::string() : std::string(text);
}

template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<double> to_priority(std::string_view text) {
  const auto value = to_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

const json::Member* member(const ObjectScan& scan, std::string_view name, ValueKind kind) {
  const json::Member* found = scan.find_last(name);
  return found != nullptr && found->kind == kind ? found : nullptr;
}

std::string text_member(const ObjectScan& scan, std::string_view name) {
  std::string text;
  const auto* found = member(scan, name, ValueKind::string);
  if (found == nullptr || !json::decode_string(scan.value(*found), text)) return {};
  return text;
}

// A priority in a header wins over one in the body.
struct HeaderFacts {
  bool has_priority = false;
  bool has_id = false;
};

void read_metadata(std::string_view name, std::string_view value, RequestFacts& facts, HeaderFacts& seen) {
  ++facts.metadata_headers;
  const std::string_view key = name.substr(kMetadataPrefix.size());
  if (value.empty()) return;
  if (key == "policy-class") {
    facts.policy_class = hint(value);
  } else if (key == "priority") {
    facts.priority_jump = to_priority(value).value_or(0.0);
    seen.has_priority = true;
  } else if (key == "strict-priority") {
    facts.strict_priority = to_number<std::uint32_t>(value).value_or(0);
  } else if (key == "slo-ttft-ms") {
    const auto goal = to_number<std::uint64_t>(value);
    facts.first_token_goal.reset();
    if (goal && *goal >= 1 && *goal <= kLongestGoalMs)
      facts.first_token_goal = std::chrono::milliseconds(*goal);
  }
}

// Of a header that comes more than once the last that isn't blank counts, but for x-request-id, of which it
// is the first.
HeaderFacts read_headers(const HeaderBlock& headers, RequestFacts& facts) {
  HeaderFacts seen;
  std::array<std::string_view, kSessionHeaders.size()> sessions;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const std::string_view name = headers.name(i);
    // Nothing of what is looked for begins otherwise.
    if (!name.starts_with("x-") && !name.starts_with("thread-")) continue;
    const std::string_view value = trimmed(headers.value(i));
    if (name == "x-request-id") {
      if (!std::exchange(seen.has_id, true)) {
        facts.request_id = std::string(headers.value(i).substr(0, kLongestHint));
      }
    } else if (name.starts_with(kMetadataPrefix)) {
      read_metadata(name, value, facts, seen);
    } else if (value.empty()) {
      continue;
    } else if (name == "x-tenant-id") {
      facts.tenant = hint(value);
    } else if (name == "x-dynamo-session-final") {
      facts.session_final = value == "true";
    } else if (const auto at = std::find(kSessionHeaders.begin(), kSessionHeaders.end(), name);
               at != kSessionHeaders.end()) {
      sessions[static_cast<std::size_t>(at - kSessionHeaders.begin())] = value;
    }
  }
  for (const std::string_view session : sessions) {
    if (facts.session_id.empty()) facts.session_id = hint(session);
  }
  return seen;
}

template <typename Number>
std::optional<Number> number_member(const ObjectScan& scan, std::string_view name) {
  const auto* found = member(scan, name, ValueKind::number);
  return found == nullptr ? std::nullopt : to_number<Number>(scan.value(*found));
}

// Engine-native hints: {"nvext": {"agent_hints": {"osl": 200, "priority": 3}}}. A header wins.
void read_hints(std::string_view nvext, RequestFacts& facts, bool has_priority) {
  ObjectScan outer;
  if (outer.scan(nvext) != json::ScanStatus::object) return;
  facts.pinned_worker = number_member<std::uint64_t>(outer, "backend_instance_id");
  if (!facts.pinned_worker) facts.pinned_worker = number_member<std::uint64_t>(outer, "decode_worker_id");
  facts.pinned_rank = number_member<std::uint32_t>(outer, "dp_rank");
  facts.pins_prefill = number_member<std::uint64_t>(outer, "prefill_worker_id").has_value();
  if (facts.tenant.empty()) facts.tenant = hint(text_member(outer, "cache_salt"));
  const auto* hints = member(outer, "agent_hints", ValueKind::object);
  ObjectScan inner;
  if (hints == nullptr || inner.scan(outer.value(*hints)) != json::ScanStatus::object) return;
  if (const auto* osl = member(inner, "osl", ValueKind::number)) {
    facts.expected_output_tokens = to_number<std::uint32_t>(inner.value(*osl));
  }
  if (has_priority) return;
  if (const auto* priority = member(inner, "priority", ValueKind::number)) {
    facts.priority_jump = to_priority(inner.value(*priority)).value_or(0.0);
  }
}

bool tokens_in(const ObjectScan& scan, std::string_view name, RequestFacts& facts) {
  const auto* found = member(scan, name, ValueKind::array);
  if (found != nullptr && parse_token_ids(scan.value(*found), facts.token_ids)) return true;
  facts.token_ids.clear();
  return false;
}

RequestKind kind_of(Api api, const ObjectScan& scan, RequestFacts& facts) {
  switch (api) {
    case Api::kChat:
      return RequestKind::kChat;
    case Api::kCompletions:
      return tokens_in(scan, "prompt", facts) ? RequestKind::kTokens : RequestKind::kCompletions;
    case Api::kVllmGenerate:
      return tokens_in(scan, "token_ids", facts) ? RequestKind::kTokens : RequestKind::kSized;
    case Api::kSglangGenerate:
      return tokens_in(scan, "input_ids", facts) ? RequestKind::kTokens : RequestKind::kSized;
    case Api::kSized:
      return RequestKind::kSized;
    case Api::kNone:
      break;
  }
  return RequestKind::kAny;
}

}  // namespace

std::string_view to_string(RequestKind kind) {
  switch (kind) {
    case RequestKind::kChat:
      return "chat";
    case RequestKind::kCompletions:
      return "completions";
    case RequestKind::kTokens:
      return "tokens";
    case RequestKind::kSized:
      return "sized";
    case RequestKind::kAny:
      return "any";
  }
  return "unknown";
}

RequestFacts read_request_facts(const HeaderBlock& headers, const std::string* body, bool reads_nvext) {
  RequestFacts facts;
  const HeaderFacts seen = read_headers(headers, facts);
  if (body == nullptr) return facts;
  facts.body_bytes = body->size();
  const Api api = api_of(headers);
  if (api == Api::kNone || !is_plain_text(headers)) return facts;
  if (json::detect_encoding(*body) != json::EncodingProblem::none) return facts;
  ObjectScan scan;
  if (scan.scan(*body) != json::ScanStatus::object) return facts;

  facts.kind = kind_of(api, scan, facts);
  facts.model = text_member(scan, "model");
  facts.cache_salt = text_member(scan, "cache_salt");
  facts.can_take_salt = scan.find_last("cache_salt") == nullptr;
  facts.streams = member(scan, "stream", ValueKind::literal_true) != nullptr;
  if (const auto* nvext = member(scan, "nvext", ValueKind::object); reads_nvext && nvext != nullptr) {
    read_hints(scan.value(*nvext), facts, seen.has_priority);
  }
  return facts;
}

void size_by_length(const HeaderBlock& headers, RequestFacts& facts) {
  if (api_of(headers) == Api::kNone) return;
  const auto length = to_number<std::uint64_t>(headers.first("content-length").value_or(""));
  if (!length || *length == 0) return;
  facts.kind = RequestKind::kSized;
  facts.body_bytes = *length;
}

bool parse_token_ids(std::string_view text, std::vector<std::uint32_t>& ids) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip_blanks = [&] {
    while (at != end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) ++at;
  };
  const auto take = [&](char wanted) {
    skip_blanks();
    if (at == end || *at != wanted) return false;
    ++at;
    return true;
  };
  ids.clear();
  if (!take('[')) return false;
  if (take(']')) return true;
  // Most ids have four or five digits and a comma.
  ids.reserve(text.size() / 5);
  do {
    skip_blanks();
    std::uint32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc()) return false;
    ids.push_back(id);
    at = next;
  } while (take(','));
  return take(']') && at == end;
}

std::string with_cache_salt(const std::string& body, std::string_view salt) {
  const std::size_t brace = body.find('{');
  const std::size_t next = body.find_first_not_of(" \t\r\n", brace + 1);
  std::string out;
  out.reserve(body.size() + salt.size() + 32);
  out.append(body, 0, brace + 1);
  out += R"("cache_salt":)";
  json::append_quoted(out, salt);
  if (next != std::string::npos && body[next] != '}') out += ',';
  out.append(body, brace + 1, std::string::npos);
  return out;
}

}  // namespace handoff::epp
