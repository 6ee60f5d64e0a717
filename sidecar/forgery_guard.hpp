// Finds fields in a client's request that only the sidecar may set, such as a forged handoff.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/json/object_scan.hpp"

namespace handoff::sidecar {

/// The reserved fields of one backend. Immutable once made, so threads may share it.
///
/// A field is named by its path: `kv_transfer_params`, or `sampling_params.extra_args.kv_transfer_params` for
/// a member of nested objects. Null and `{}` are harmless there; any other value is a forgery. All
/// occurrences count, however the keys are escaped and however often a field or an object around it is
/// repeated: which of them wins is the engine's parser's choice, and not all choose alike.
class ForgeryGuard {
 public:
  static constexpr std::size_t kMaxLevels = 4;

  /// Guards nothing.
  ForgeryGuard() = default;

  /// Throws std::invalid_argument, which names the path, when one is empty, has an empty part or too many
  /// levels.
  explicit ForgeryGuard(std::span<const std::string_view> reserved_paths);

  /// The path of the first reserved field whose value isn't harmless. The text is the guard's, never the
  /// client's. Allocates nothing unless the body has an object that may hold a reserved field. Objects nested
  /// in such a path fail closed: one with more members than a scan lists counts as a forgery of what it could
  /// hide.
  std::optional<std::string_view> find_forged(const json::ObjectScan& body) const;

 private:
  /// One part of the reserved paths; paths with the same beginning share it.
  struct Part {
    std::string name;
    std::string path;
    bool is_reserved = false;
    std::vector<Part> inner;
  };

  void reserve(std::string_view path);
  static std::optional<std::string_view> find_in(const json::ObjectScan& object, std::span<const Part> parts);
  static std::optional<std::string_view> find_inside(const json::ObjectScan& object,
                                                     const json::Member& member, const Part& part);

  std::vector<Part> roots_;
};

}  // namespace handoff::sidecar
