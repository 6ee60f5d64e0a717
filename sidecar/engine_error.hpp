// What may be logged of an engine's error.
#pragma once

#include <string>
#include <string_view>

namespace handoff::sidecar {

/// The `type`, else the `code`, of an error body: OpenAI's shape (`{"error":{"type":…,"code":…}}`), or the
/// same members at the top. Empty unless it is one short word of letters, digits, `_`, `-` and `.`: messages
/// are never looked at, since engines quote the prompt in them.
std::string engine_error_word(std::string_view body);

}  // namespace handoff::sidecar
