#pragma once

#include <string>
#include <string_view>

namespace handoff::json {

/// Appends the meaning of a string's inside (the text between its quotes) to `out`: escapes are resolved,
/// surrogate pairs joined; a lone surrogate becomes three bytes (see `append_code_point`). Bytes that are no
/// escape are copied unjudged. False when an escape is not JSON's; `out` then holds what came before it.
bool append_unescaped(std::string& out, std::string_view inside);

/// Replaces `out` with the meaning of a string value, quotes included in `value`. False when `value` is not
/// one complete JSON string.
bool decode_string(std::string_view value, std::string& out);

/// Whether `value` is the empty JSON string, `""`.
bool string_is_empty(std::string_view value);

/// Appends `text` as a JSON string with its quotes. Every byte that is not part of valid UTF-8 becomes
/// U+FFFD, so the output is valid JSON whatever `text` holds.
void append_quoted(std::string& out, std::string_view text);

}  // namespace handoff::json
