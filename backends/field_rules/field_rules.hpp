#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shared/backend_abi/backend_sdk.hpp"

// Which members of a request stand in the way of a handoff. Pure; views last as long as the request's body.
namespace handoff::field_rules {

/// Values that leave a field without effect, so that a handoff can carry the request.
enum class Harmless : std::uint8_t {
  null,             ///< only null
  null_or_false,    ///< a switch that is off
  null_or_one,      ///< a count of one
  null_or_counted,  ///< a plain non-negative number
  null_or_disabled  ///< "disabled"
};

struct Rule {
  std::string_view field;
  Harmless harmless;
  std::string_view reason;
};

/// The reason of the first member that a rule objects to; empty if none does. Looks at every member of a
/// repeated name: it must not matter which one an engine takes.
std::string_view first_reason(const sdk::Object& object, std::span<const Rule> rules);

/// What a schema allows in `stream_options` beside `include_usage` and `continuous_usage_stats`.
enum class OtherOptions : std::uint8_t { allowed, refused };

/// Why an engine would refuse the request for its `stream` and `stream_options`, as a decode-only reason;
/// empty if it would not. The first leg gets neither, so it would accept what the second refuses, with a
/// handoff in between that nobody takes. Spellings of false that are none in JSON count as a reason:
/// decode-only is always right.
std::string_view stream_reason(const sdk::Host& host, const sdk::Object& body, OtherOptions others);

/// Whether any member of that name holds a value: no null and no `{}`. The sidecar refuses a client's handoff
/// unless it is told to trust its clients; then the client runs its own protocol, and ours would overwrite
/// it.
bool brings(const sdk::Object& object, std::string_view name);

}  // namespace handoff::field_rules
