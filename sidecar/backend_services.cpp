#include "sidecar/backend_services.hpp"

#include <sys/random.h>

#include <chrono>
#include <string>

#include "shared/telemetry/log.hpp"
#include "sidecar/abi_text.hpp"

namespace handoff::sidecar {
namespace {

constexpr std::size_t kMaxWarnings = 64;
constexpr std::chrono::minutes kWarningInterval{1};

static_assert(static_cast<std::uint32_t>(json::ValueKind::object) == HANDOFF_JSON_OBJECT);
static_assert(static_cast<std::uint32_t>(json::ValueKind::array) == HANDOFF_JSON_ARRAY);
static_assert(static_cast<std::uint32_t>(json::ValueKind::string) == HANDOFF_JSON_STRING);
static_assert(static_cast<std::uint32_t>(json::ValueKind::number) == HANDOFF_JSON_NUMBER);
static_assert(static_cast<std::uint32_t>(json::ValueKind::literal_true) == HANDOFF_JSON_TRUE);
static_assert(static_cast<std::uint32_t>(json::ValueKind::literal_false) == HANDOFF_JSON_FALSE);
static_assert(static_cast<std::uint32_t>(json::ValueKind::null) == HANDOFF_JSON_NULL);
static_assert(static_cast<std::uint32_t>(json::ValueKind::other) == HANDOFF_JSON_OTHER);

}  // namespace

handoff_object to_abi(const json::ObjectScan& scan, json::ScanStatus status, std::string_view text,
                      std::vector<handoff_member>& members) {
  handoff_object out{};
  out.struct_size = sizeof(out);
  out.text = {text.data(), text.size()};
  switch (status) {
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
  const auto found = scan.members();
  if (members.size() < found.size()) members.resize(found.size());
  auto* row = members.data();
  for (const auto& member : found) {
    *row++ = {{member.name.data(), member.name.size()},
              member.key_begin,
              member.value_begin,
              member.value_end,
              static_cast<std::uint32_t>(member.kind),
              0};
  }
  out.members = members.data();
  out.member_count = found.size();
  out.open_brace = scan.open_brace();
  out.close_brace = scan.close_brace();
  return out;
}

BackendServices::BackendServices(Counters& counters) : table_{}, counters_(counters) {
  table_.self = this;
  auto& api = table_.api;
  api.struct_size = sizeof(api);
  api.abi_major = HANDOFF_ABI_MAJOR;
  api.abi_minor = HANDOFF_ABI_MINOR;
  api.json = &json;
  api.random = &random;
  api.warn = &warn;
  api.count = &count;
  install_actions(api);
}

BackendServices& BackendServices::self_of(const handoff_host_api* host) {
  static_assert(offsetof(Table, api) == 0);
  return *reinterpret_cast<const Table*>(host)->self;
}

handoff_status BackendServices::json(const handoff_host_api* host, handoff_bytes text, handoff_object* out) {
  auto& self = self_of(host);
  if (self.scans_used_ == HANDOFF_MAX_SCANS) return HANDOFF_INVALID;
  if (self.scans_used_ == self.scans_.size()) self.scans_.push_back(std::make_unique<Scan>());
  auto& scan = *self.scans_[self.scans_used_++];
  const auto status = scan.object.scan(view(text));
  *out = to_abi(scan.object, status, view(text), scan.members);
  return HANDOFF_OK;
}

void BackendServices::random(const handoff_host_api*, void* out, std::size_t size) {
  auto* bytes = static_cast<char*>(out);
  std::size_t filled = 0;
  while (filled < size) {  // a signal may cut a large request short
    const auto got = ::getrandom(bytes + filled, size - filled, 0);
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
}

void BackendServices::warn(const handoff_host_api* host, handoff_bytes key, handoff_bytes message) {
  auto& self = self_of(host);
  self.counters_.add("backend_warning", view(key));
  if (self.warnings_.size() >= kMaxWarnings && !self.warnings_.contains(view(key))) return;
  auto& limit = self.warnings_.try_emplace(std::string(view(key)), kWarningInterval).first->second;
  if (const auto suppressed = limit.try_pass()) {
    telemetry::LogLine(telemetry::Level::warn, "backend_warning")
        .field("about", view(key))
        .field("message", view(message))
        .field("suppressed", *suppressed);
  }
}

void BackendServices::count(const handoff_host_api* host, handoff_bytes name) {
  self_of(host).counters_.add("backend", view(name));
}

}  // namespace handoff::sidecar
