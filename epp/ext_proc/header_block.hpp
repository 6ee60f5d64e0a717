#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace handoff::epp {

// A message's header fields in one piece of memory. Names are kept in lower case, as HTTP/2 has them.
class HeaderBlock {
 public:
  // Of names and values together.
  void reserve(std::size_t fields, std::size_t bytes);
  void add(std::string_view name, std::string_view value);
  // Keeps the memory.
  void clear();

  std::size_t size() const { return fields_.size(); }
  std::string_view name(std::size_t i) const;
  std::string_view value(std::size_t i) const;

  // By lower-case name; views live as long as the block is not changed. Absent: nullopt.
  std::optional<std::string_view> first(std::string_view name) const;
  // The last one that isn't blank, without blanks around it.
  std::optional<std::string_view> last_filled(std::string_view name) const;

 private:
  struct Field {
    std::uint32_t begin;
    std::uint32_t name_size;
    std::uint32_t value_size;
  };
  std::string text_;
  std::vector<Field> fields_;
};

// Without blanks and tabs around it.
std::string_view trimmed(std::string_view text);

}  // namespace handoff::epp
