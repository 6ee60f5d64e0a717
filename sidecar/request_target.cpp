#include "sidecar/request_target.hpp"

#include <algorithm>
#include <cstddef>

#include "sidecar/ascii.hpp"

namespace handoff::sidecar {
namespace {

constexpr auto npos = std::string_view::npos;

bool is_blank_or_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte <= ' ' || byte == 0x7f;
}

bool is_scheme(std::string_view text) {
  return !text.empty() && is_ascii_alpha(text.front()) && std::all_of(text.begin(), text.end(), [](char c) {
    return is_ascii_alpha(c) || is_ascii_digit(c) || c == '+' || c == '-' || c == '.';
  });
}

/// Where the authority of an absolute form starts; npos when the target isn't one.
std::size_t authority_start(std::string_view target) {
  const auto colon = target.find("://");
  return colon != npos && is_scheme(target.substr(0, colon)) ? colon + 3 : npos;
}

/// What follows the authority of a target in absolute form: path, query and fragment, each of which may be
/// missing.
std::string_view after_authority(std::string_view target) {
  target.remove_prefix(authority_start(target));
  const auto end = target.find_first_of("/?#");
  return end == npos ? std::string_view() : target.substr(end);
}

bool is_unreserved(char c) {
  return is_ascii_alpha(c) || is_ascii_digit(c) || c == '-' || c == '.' || c == '_' || c == '~';
}

int hex_value(char c) {
  return is_ascii_digit(c) ? c - '0' : ascii_lower(c) - 'a' + 10;
}

std::string_view raw_path(std::string_view target) {
  switch (target_form(target)) {
    case TargetForm::invalid:
      return {};
    case TargetForm::asterisk:
      return target;
    case TargetForm::origin:
      return target.substr(0, target.find_first_of("?#"));
    case TargetForm::absolute: {
      const std::string_view rest = after_authority(target);
      const std::string_view path = rest.substr(0, rest.find_first_of("?#"));
      return path.empty() ? "/" : path;
    }
  }
  return {};
}

/// Decodes once, left to right, the percent-encoded bytes that `wanted` accepts; broken sequences stay as
/// they are.
template <typename Wanted>
std::string_view decode(std::string_view path, std::string& buffer, Wanted wanted) {
  if (path.find('%') == npos) return path;
  buffer.clear();
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '%' && path.size() - i > 2 && is_ascii_hex_digit(path[i + 1]) &&
        is_ascii_hex_digit(path[i + 2])) {
      const char decoded = static_cast<char>(hex_value(path[i + 1]) * 16 + hex_value(path[i + 2]));
      if (wanted(decoded)) {
        buffer += decoded;
        i += 2;
        continue;
      }
    }
    buffer += path[i];
  }
  return buffer;
}

}  // namespace

TargetForm target_form(std::string_view target) {
  if (target.empty() || std::any_of(target.begin(), target.end(), is_blank_or_control))
    return TargetForm::invalid;
  if (target.front() == '/') return TargetForm::origin;
  if (target == "*") return TargetForm::asterisk;
  const auto start = authority_start(target);
  const bool has_authority =
      start != npos && start < target.size() && target.find_first_of("/?#", start) != start;
  return has_authority ? TargetForm::absolute : TargetForm::invalid;
}

std::string_view normalised_path(std::string_view target, std::string& buffer) {
  return decode(raw_path(target), buffer, is_unreserved);
}

std::string_view fully_decoded_path(std::string_view target, std::string& buffer) {
  return decode(raw_path(target), buffer, [](char) { return true; });
}

std::string_view origin_form(std::string_view target, std::string& buffer) {
  switch (target_form(target)) {
    case TargetForm::invalid:
      return {};
    case TargetForm::origin:
    case TargetForm::asterisk:
      return target;
    case TargetForm::absolute: {
      const std::string_view rest = after_authority(target);
      if (rest.starts_with('/')) return rest;
      buffer = '/';
      buffer += rest;
      return buffer;
    }
  }
  return {};
}

}  // namespace handoff::sidecar
