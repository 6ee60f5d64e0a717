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

}  // namespace

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
