// Comma lists in header values (RFC 9110, section 5.6.1), such as those of Connection and Transfer-Encoding.
#pragma once

#include <cstddef>
#include <iterator>
#include <string_view>

namespace handoff::sidecar {

/// The elements of one field value, without the blanks around them; empty elements are skipped, as recipients
/// must. A comma inside a quoted string separates nothing; a quote that is never closed runs to the end. A
/// view for range-for: nothing is copied or allocated, and the value must outlive it.
class TokenList {
 public:
  class Iterator {
   public:
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(std::string_view value) : rest_(value), at_end_(false) { advance(); }

    std::string_view operator*() const { return element_; }
    Iterator& operator++() {
      advance();
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      advance();
      return before;
    }
    bool operator==(std::default_sentinel_t) const { return at_end_; }

   private:
    void advance();

    std::string_view element_;
    std::string_view rest_;
    bool at_end_ = true;
  };

  explicit TokenList(std::string_view value) : value_(value) {}

  Iterator begin() const { return Iterator(value_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  std::string_view value_;
};

/// Whether the list has the token, in any case of letters. An element with parameters (`token;q=1`) is
/// another element.
bool contains_token(std::string_view value, std::string_view token);

}  // namespace handoff::sidecar
