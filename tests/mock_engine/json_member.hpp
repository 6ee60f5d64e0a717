// Members of a request, as the engines read them: null is as good as absent.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace handoff::mock {

/// The member, or nullptr if it is absent or null.
inline const nlohmann::json* member(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// The member if it is a string, else "".
inline std::string text_of(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace handoff::mock
