#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "backends/json_text/json_text.hpp"

// Members and items within values that are too many, or too deep, for the host's scan. Nothing is validated:
// on text that is no JSON the answers are empty or wrong, never out of bounds.
namespace handoff::json_text {

/// The members of an object, one after the other.
class Members {
 public:
  struct Member {
    std::string_view name;  ///< between its quotes, escapes as they stand
    std::string_view value;
  };
  explicit Members(std::string_view object);
  /// Nothing at the end, and where the text stops being an object.
  std::optional<Member> next();

 private:
  std::string_view text_;
  Cursor at_;
  bool more_;
};

/// The value of the object's last member of that name, which is what an engine's parser takes, however the
/// object spells the name. The view is of `object`.
std::optional<std::string_view> find_member(std::string_view object, std::string_view name);

/// The same for several names, in one pass.
template <std::size_t count>
std::array<std::optional<std::string_view>, count> find_members(
    std::string_view object, const std::array<std::string_view, count>& names) {
  std::array<std::optional<std::string_view>, count> found;
  Members members(object);
  while (const auto member = members.next()) {
    for (std::size_t i = 0; i < count; ++i) {
      if (spells(member->name, names[i])) found[i] = member->value;
    }
  }
  return found;
}

/// The inside of a string that has no escapes; nothing for any other value.
std::optional<std::string_view> plain_string(std::string_view value);

/// The items of a list, one after the other.
class Items {
 public:
  explicit Items(std::string_view list);
  bool is_list() const { return is_list_; }
  /// Nothing at the end, and where the text stops being a list.
  std::optional<std::string_view> next();

 private:
  std::string_view text_;
  Cursor at_;
  bool is_list_;
  bool first_ = true;
};

}  // namespace handoff::json_text
