#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace handoff::telemetry {

enum class Level : std::uint8_t { trace, debug, info, warn, error, off };

/// A level by its name in any case; also "warning". Nothing for other words.
std::optional<Level> parse_level(std::string_view name);

/// Lower-case name, as `parse_level` takes it.
std::string_view to_text(Level level);

}  // namespace handoff::telemetry
