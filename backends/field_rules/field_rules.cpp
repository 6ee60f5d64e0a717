#include "backends/field_rules/field_rules.hpp"

#include "backends/json_text/json_text.hpp"

namespace handoff::field_rules {
namespace {

bool is_harmless(std::string_view value, std::uint32_t kind, Harmless harmless) {
  if (kind == HANDOFF_JSON_NULL) return true;
  switch (harmless) {
    case Harmless::null:
      return false;
    case Harmless::null_or_false:
      return kind == HANDOFF_JSON_FALSE;
    case Harmless::null_or_one:
      return json_text::reads_as_one(value);
    case Harmless::null_or_counted:
      return json_text::plain_integer(value, INT64_MAX) >= 0;
    case Harmless::null_or_disabled:
      return value == "\"disabled\"";
  }
  return false;
}

bool is_switch(std::string_view value, std::uint32_t kind) {
  return kind == HANDOFF_JSON_NULL || kind == HANDOFF_JSON_FALSE || json_text::reads_as_true(value);
}

bool has_sound_options(const sdk::Object& options, OtherOptions others) {
  if (!options.is_object()) return false;
  for (const auto& member : options.members()) {
    const auto name = sdk::view(member.name);
    const bool known = name == "include_usage" || name == "continuous_usage_stats";
    if (known ? !is_switch(options.raw(member), member.kind) : others == OtherOptions::refused) return false;
  }
  return true;
}

}  // namespace

std::string_view stream_reason(const sdk::Host& host, const sdk::Object& body, OtherOptions others) {
  bool streams = false;
  for (const auto& member : body.members()) {
    if (sdk::view(member.name) != "stream") continue;
    if (!is_switch(body.raw(member), member.kind)) return "stream";
    streams = json_text::reads_as_true(body.raw(member));
  }
  for (const auto& member : body.members()) {
    if (sdk::view(member.name) != "stream_options" || member.kind == HANDOFF_JSON_NULL) continue;
    if (!streams || !has_sound_options(host.json(body.raw(member)), others)) return "stream_options";
  }
  return {};
}

std::string_view first_reason(const sdk::Object& object, std::span<const Rule> rules) {
  for (const auto& member : object.members()) {
    for (const Rule& rule : rules) {
      if (sdk::view(member.name) == rule.field &&
          !is_harmless(object.raw(member), member.kind, rule.harmless)) {
        return rule.reason;
      }
    }
  }
  return {};
}

bool brings(const sdk::Object& object, std::string_view name) {
  for (const auto& member : object.members()) {
    if (sdk::view(member.name) == name && member.kind != HANDOFF_JSON_NULL &&
        !json_text::is_empty_object(object.raw(member))) {
      return true;
    }
  }
  return false;
}

}  // namespace handoff::field_rules
