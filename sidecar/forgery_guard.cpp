#include "sidecar/forgery_guard.hpp"

#include <algorithm>
#include <stdexcept>

#include "shared/json/value_text.hpp"

namespace handoff::sidecar {
namespace {

bool is_harmless(std::string_view value, json::ValueKind kind) {
  return kind == json::ValueKind::null || (kind == json::ValueKind::object && json::is_empty_object(value));
}

}  // namespace

ForgeryGuard::ForgeryGuard(std::span<const std::string_view> reserved_paths) {
  for (const std::string_view path : reserved_paths) reserve(path);
}

void ForgeryGuard::reserve(std::string_view path) {
  std::vector<Part>* siblings = &roots_;
  std::string_view rest = path;
  for (std::size_t level = 1;; ++level) {
    const auto dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    if (name.empty() || level > kMaxLevels) {
      throw std::invalid_argument("reserved field '" + std::string(path) + "' is no path of 1 to " +
                                  std::to_string(kMaxLevels) + " names");
    }
    auto part = std::find_if(siblings->begin(), siblings->end(),
                             [&](const Part& known) { return known.name == name; });
    if (part == siblings->end()) part = siblings->insert(part, Part{std::string(name), {}, false, {}});
    if (dot == std::string_view::npos) {
      part->path = path;
      part->is_reserved = true;
      return;
    }
    siblings = &part->inner;
    rest.remove_prefix(dot + 1);
  }
}

std::optional<std::string_view> ForgeryGuard::find_forged(const json::ObjectScan& body) const {
  return find_in(body, roots_);
}

std::optional<std::string_view> ForgeryGuard::find_in(const json::ObjectScan& object,
                                                      std::span<const Part> parts) {
  for (const json::Member& member : object.members()) {
    for (const Part& part : parts) {
      if (member.name != part.name) continue;
      if (part.is_reserved && !is_harmless(object.value(member), member.kind)) return part.path;
      if (part.inner.empty() || member.kind != json::ValueKind::object) continue;
      if (const auto forged = find_inside(object, member, part)) return forged;
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> ForgeryGuard::find_inside(const json::ObjectScan& object,
                                                          const json::Member& member, const Part& part) {
  json::ObjectScan nested;
  switch (nested.scan(object.value(member))) {
    case json::ScanStatus::object:
      return find_in(nested, part.inner);
    case json::ScanStatus::too_many_members: {
      const Part* hidden = &part.inner.front();
      while (!hidden->is_reserved) hidden = &hidden->inner.front();
      return hidden->path;
    }
    case json::ScanStatus::not_an_object:
    case json::ScanStatus::malformed:
      // No engine's parser takes it either.
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace handoff::sidecar
