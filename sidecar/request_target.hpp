// What a request line's target means for routing, and what of it is sent on.
#pragma once

#include <string>
#include <string_view>

namespace handoff::sidecar {

enum class TargetForm {
  origin,    // /path?query
  absolute,  // scheme://authority/path?query
  asterisk,  // *
  invalid,   // anything else, such as CONNECT's host:port, and any blank or control character
};

/// The form of a target. Bytes above ASCII are let through, as the engines take them.
TargetForm target_form(std::string_view target);

/// The path that decides the route: without scheme, authority, query and fragment, and with percent-encoded
/// unreserved characters (letters, digits, '-', '.', '_', '~') decoded, which by RFC 3986 is the same path.
/// Dot segments and double slashes stay, as the engines don't fold them. "*" for the asterisk form, empty for
/// an invalid target.
///
/// The result points into `target`, or into `buffer` when something was decoded, and lives as long as both
/// are unchanged.
std::string_view normalised_path(std::string_view target, std::string& buffer);

/// The path with every percent-encoded byte decoded, as the engines' Python servers do before they look for a
/// handler: `/v1%2Fcompletions` reaches the same handler as `/v1/completions`. What must hold for every way
/// to reach a handler (limits, the forgery guard) is decided on this one. Lifetime as above.
std::string_view fully_decoded_path(std::string_view target, std::string& buffer);

/// The target as it is sent to the engine: the client's bytes; of an absolute form its path and query.
/// Lifetime as above; the buffer is needed for `http://host?query`, whose path is empty. Empty for an invalid
/// target.
std::string_view origin_form(std::string_view target, std::string& buffer);

}  // namespace handoff::sidecar
