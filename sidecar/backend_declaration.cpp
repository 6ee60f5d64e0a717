#include "sidecar/backend_declaration.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>

#include "sidecar/abi_text.hpp"
#include "sidecar/ascii.hpp"

namespace handoff::sidecar {
namespace {

// Far above what any engine needs. A greater count is an uninitialised or misread table.
constexpr std::size_t kMaxEntries = 64;
constexpr std::size_t kMaxNameSize = 32;
constexpr std::size_t kMaxKeySize = 64;
constexpr std::size_t kMaxTextSize = 4096;
constexpr std::uint32_t kMaxIntervalMs = 24u * 3600 * 1000;
constexpr int kMaxFieldDepth = 4;

bool readable(handoff_bytes text) {
  return text.size == 0 || (text.data != nullptr && text.size <= kMaxTextSize);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}

template <class Predicate>
bool all(std::string_view text, Predicate allowed) {
  return std::all_of(text.begin(), text.end(), allowed);
}

bool is_visible(std::string_view text) {
  return all(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

std::string quoted(handoff_bytes text) {
  return '"' + printable(view(text)) + '"';
}

/// An array of the table: its count is credible and there is something to point at.
std::string array_problem(std::string_view what, const void* first, std::size_t count) {
  if (count > kMaxEntries) {
    return std::string(what) + " has " + std::to_string(count) + " entries, at most " +
           std::to_string(kMaxEntries) + " are allowed";
  }
  if (count > 0 && first == nullptr) {
    return std::string(what) + " is NULL, but its count is " + std::to_string(count);
  }
  return {};
}

std::string at(std::string_view array, std::size_t index) {
  return std::string(array) + '[' + std::to_string(index) + ']';
}

std::string route_problem(const handoff_route& route) {
  if (!readable(route.method) || !readable(route.path)) return ": its text is NULL or too long";
  if (route.method.size == 0) return ": the method is empty";
  if (!is_http_token(view(route.method))) return ": " + quoted(route.method) + " is not an HTTP method";
  const auto path = view(route.path);
  if (!path.starts_with('/')) return ": the path " + quoted(route.path) + " does not begin with '/'";
  if (!is_visible(path) || path.find_first_of("?#") != std::string_view::npos) {
    return ": the path " + quoted(route.path) + " contains a space, a query or a byte that is not ASCII";
  }
  return {};
}

std::string routes_problem(const handoff_backend_api& table) {
  auto problem = array_problem("routes", table.routes, table.route_count);
  if (!problem.empty()) return problem;
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (std::size_t i = 0; i < table.route_count; ++i) {
    const auto& route = table.routes[i];
    problem = route_problem(route);
    if (problem.empty() && !seen.emplace(view(route.method), view(route.path)).second) {
      problem =
          ": " + printable(view(route.method)) + ' ' + printable(view(route.path)) + " is declared twice";
    }
    if (!problem.empty()) return at("routes", i) + problem;
  }
  return {};
}

std::string reserved_fields_problem(const handoff_backend_api& table) {
  auto problem = array_problem("reserved_fields", table.reserved_fields, table.reserved_field_count);
  if (!problem.empty()) return problem;
  for (std::size_t i = 0; i < table.reserved_field_count; ++i) {
    const auto field = table.reserved_fields[i].path;
    const auto where = at("reserved_fields", i);
    if (!readable(field)) return where + ": its text is NULL or too long";
    const auto path = view(field);
    const bool empty_name = path.empty() || path.starts_with('.') || path.ends_with('.') ||
                            path.find("..") != std::string_view::npos;
    if (empty_name) return where + ": " + quoted(field) + " contains an empty name";
    if (!is_visible(path))
      return where + ": " + quoted(field) + " contains a space or a byte that is not ASCII";
    if (std::count(path.begin(), path.end(), '.') >= kMaxFieldDepth) {
      return where + ": " + quoted(field) + " is deeper than " + std::to_string(kMaxFieldDepth) + " names";
    }
  }
  return {};
}

std::string config_key_problem(const handoff_config_key& key) {
  if (!readable(key.name) || !readable(key.accepts) || !readable(key.default_value) || !readable(key.help)) {
    return ": its text is NULL or too long";
  }
  const auto name = view(key.name);
  const bool sound = !name.empty() && name.size() <= kMaxKeySize && is_upper(name.front()) &&
                     all(name, [](char c) { return is_upper(c) || is_digit(c) || c == '_'; });
  if (!sound) {
    return ": the name " + quoted(key.name) + " must be 1 to " + std::to_string(kMaxKeySize) +
           " of A-Z, 0-9 and _, beginning with a letter";
  }
  const auto about = " (" + std::string(name) + "): ";
  if (key.kind > HANDOFF_CONFIG_FILE) return about + "kind " + std::to_string(key.kind) + " is unknown";
  if ((key.flags & ~HANDOFF_CONFIG_SECRET) != 0) {
    return about + "flags " + std::to_string(key.flags) + " are unknown";
  }
  if (key.kind == HANDOFF_CONFIG_CHOICE && key.accepts.size == 0) {
    return about + "a choice needs the values that it accepts";
  }
  return {};
}

std::string config_keys_problem(const handoff_backend_api& table) {
  auto problem = array_problem("config_keys", table.config_keys, table.config_key_count);
  if (!problem.empty()) return problem;
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < table.config_key_count; ++i) {
    const auto& key = table.config_keys[i];
    problem = config_key_problem(key);
    if (problem.empty() && !seen.insert(view(key.name)).second) {
      problem = ": " + std::string(view(key.name)) + " is declared twice";
    }
    if (!problem.empty()) return at("config_keys", i) + problem;
  }
  return {};
}

std::string identity_problem(const handoff_backend_api& table) {
  if (!readable(table.name) || !readable(table.protocol)) return "name or protocol is NULL or too long";
  if (table.name.size == 0) return "name is empty";
  const bool sound = table.name.size <= kMaxNameSize && all(view(table.name), [](char c) {
                       return is_lower(c) || is_digit(c) || c == '_' || c == '-';
                     });
  if (!sound) {
    return "name " + quoted(table.name) + " must be at most " + std::to_string(kMaxNameSize) +
           " of a-z, 0-9, _ and -";
  }
  if (!is_visible(view(table.protocol))) {
    return "protocol " + quoted(table.protocol) + " contains a space or a byte that is not ASCII";
  }
  return {};
}

std::string health_problem(const handoff_backend_api& table) {
  if (!readable(table.health_path)) return "health_path is NULL or too long";
  const auto path = view(table.health_path);
  if (!path.starts_with('/') || !is_visible(path) || path.find('#') != std::string_view::npos) {
    return "health_path " + quoted(table.health_path) + " must begin with '/' and be visible ASCII";
  }
  if (table.health_interval_ms == 0 || table.health_interval_ms > kMaxIntervalMs) {
    return "health_interval_ms is " + std::to_string(table.health_interval_ms) + ", must be 1 to " +
           std::to_string(kMaxIntervalMs);
  }
  return {};
}

std::string flags_problem(const handoff_backend_api& table) {
  if ((table.flags & ~HANDOFF_BACKEND_NEEDS_PREFILL) == 0) return {};
  return "flags " + std::to_string(table.flags) + " are unknown";
}

}  // namespace

std::string find_declaration_problem(const handoff_backend_api& table) {
  for (const auto check : {identity_problem, routes_problem, reserved_fields_problem, config_keys_problem,
                           health_problem, flags_problem}) {
    if (auto problem = check(table); !problem.empty()) return problem;
  }
  return {};
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMaxShown = 200;
  std::string out(text.substr(0, kMaxShown));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > kMaxShown) out += "...";
  return out;
}

}  // namespace handoff::sidecar
