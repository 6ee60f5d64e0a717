// Members of a request, as the engines read them: null is as good as absent.
#pragma once

#include <nlohmann/json.hpp>

namespace handoff::mock {

/// The member, or nullptr if it is absent or null.
inline const nlohmann::json* member(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace handoff::mock
