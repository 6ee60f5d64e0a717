#pragma once

#include <optional>
#include <string_view>

#include "backends/json_text/json_text.hpp"

// Members and items within values that are too many, or too deep, for the host's scan. Nothing is validated:
// on text that is no JSON the answers are empty or wrong, never out of bounds.
namespace handoff::json_text {

/// The value of the object's last member of that name, which must be spelled without escapes, as engines do.
/// The view is of `object`.
std::optional<std::string_view> find_member(std::string_view object, std::string_view name);

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
