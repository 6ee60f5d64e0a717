#include "sidecar/header_rules.hpp"

#include <algorithm>
#include <optional>

#include "sidecar/ascii.hpp"
#include "sidecar/token_list.hpp"

namespace handoff::sidecar {
namespace {

struct KnownHeader {
  std::string_view name;
  HeaderClass header_class = HeaderClass::end_to_end;
};

constexpr KnownHeader kKnownHeaders[] = {
    {"accept-encoding", HeaderClass::accept_encoding},
    {"content-encoding", HeaderClass::content_encoding},
    {"content-type", HeaderClass::content_type},
    {"retry-after", HeaderClass::retry_after},
    {"x-request-id", HeaderClass::x_request_id},

    {"connection", HeaderClass::connection},
    {"content-length", HeaderClass::content_length},
    {"expect", HeaderClass::expect},
    {"host", HeaderClass::host},
    {"transfer-encoding", HeaderClass::transfer_encoding},
    {"upgrade", HeaderClass::upgrade},
    {"http2-settings", HeaderClass::hop_by_hop},
    {"keep-alive", HeaderClass::hop_by_hop},
    {"proxy-authenticate", HeaderClass::hop_by_hop},
    {"proxy-authorization", HeaderClass::hop_by_hop},
    {"proxy-connection", HeaderClass::hop_by_hop},
    {"te", HeaderClass::hop_by_hop},
    {"trailer", HeaderClass::hop_by_hop},

    {"x-prefiller-host-port", HeaderClass::x_prefiller_host_port},
    {"x-data-parallel-host-port", HeaderClass::orchestration},
    {"x-encoder-hosts-ports", HeaderClass::orchestration},
    {"x-gateway-model-name-rewrite", HeaderClass::orchestration},
    {"x-kv-cache-source-host-port", HeaderClass::orchestration},
};

constexpr std::string_view kOrchestrationPrefixes[] = {
    "x-dynamo-",
    "x-gateway-destination-endpoint",
    "x-gateway-inference-",
};

/// Forwarded fields that a Connection header can't remove.
constexpr std::string_view kProtectedFields[] = {
    // What the body is: a check that saw it and an engine that doesn't would disagree.
    "content-encoding", "content-type",
    // Credentials and cookies
    "api-key", "authorization", "cookie", "set-cookie", "www-authenticate", "x-api-key",
    // Who asked, as the gateway saw it, and the threads that logs and traces hang on
    "forwarded", "traceparent", "tracestate", "via", "x-real-ip", "x-request-id",
    // What caches and retries go by
    "cache-control", "retry-after", "vary"};
constexpr std::string_view kProtectedPrefix = "x-forwarded-";

// A perfect hash over length and three letters, whose multiplier the compiler finds: one multiplication and
// at most one comparison for each of the many fields that mean nothing to us.
constexpr unsigned kSlotBits = 7;

constexpr std::size_t slot_of(std::string_view name, std::uint32_t multiplier) {
  // Names are ASCII; 0x20 makes capitals small and what else it folds together the comparison tells apart.
  const auto letter = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(name[i]) | 0x20);
  };
  const auto size = static_cast<std::uint32_t>(name.size()) & 0xff;
  const std::uint32_t key =
      size | letter(0) << 8 | letter(name.size() / 2) << 16 | letter(name.size() - 1) << 24;
  return (key * multiplier) >> (32 - kSlotBits);
}

constexpr bool is_perfect(std::uint32_t multiplier) {
  std::array<bool, 1 << kSlotBits> taken{};
  for (const KnownHeader& known : kKnownHeaders) {
    bool& slot = taken[slot_of(known.name, multiplier)];
    if (slot) return false;
    slot = true;
  }
  return true;
}

constexpr std::uint32_t find_multiplier() {
  std::uint32_t multiplier = 0x9e3779b1;
  while (!is_perfect(multiplier)) multiplier += 2;
  return multiplier;
}

constexpr std::uint32_t kMultiplier = find_multiplier();

constexpr auto kSlots = [] {
  std::array<KnownHeader, 1 << kSlotBits> slots{};
  for (const KnownHeader& known : kKnownHeaders) slots[slot_of(known.name, kMultiplier)] = known;
  return slots;
}();

bool starts_with_ignoring_case(std::string_view text, std::string_view prefix) {
  return equals_ignoring_case(text.substr(0, prefix.size()), prefix);
}

bool is_orchestration_by_prefix(std::string_view name) {
  return ascii_lower(name.front()) == 'x' &&
         std::any_of(std::begin(kOrchestrationPrefixes), std::end(kOrchestrationPrefixes),
                     [&](std::string_view prefix) { return starts_with_ignoring_case(name, prefix); });
}

bool is_protected(std::string_view name) {
  return starts_with_ignoring_case(name, kProtectedPrefix) ||
         std::any_of(std::begin(kProtectedFields), std::end(kProtectedFields),
                     [&](std::string_view field) { return equals_ignoring_case(name, field); });
}

}  // namespace

HeaderClass classify_header(std::string_view name) {
  if (name.empty()) return HeaderClass::end_to_end;
  const KnownHeader& known = kSlots[slot_of(name, kMultiplier)];
  if (equals_ignoring_case(name, known.name)) return known.header_class;
  return is_orchestration_by_prefix(name) ? HeaderClass::orchestration : HeaderClass::end_to_end;
}

bool ConnectionOptions::add(std::string_view field_value) {
  for (const std::string_view option : TokenList(field_value)) {
    if (equals_ignoring_case(option, "close")) {
      close_ = true;
    } else if (equals_ignoring_case(option, "keep-alive")) {
      keep_alive_ = true;
    } else if (equals_ignoring_case(option, "upgrade")) {
      upgrade_ = true;
    } else if (is_forwarded(classify_header(option)) && !is_protected(option) && !is_named(option)) {
      if (named_count_ == kMaxNamedFields) return false;
      named_[named_count_++] = option;
    }
  }
  return true;
}

bool ConnectionOptions::is_named(std::string_view name) const {
  return std::any_of(named_.begin(), named_.begin() + named_count_,
                     [&](std::string_view named) { return equals_ignoring_case(named, name); });
}

}  // namespace handoff::sidecar
