#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// Questions about the raw text of one JSON value that has been found by the host's scan. Every function is
// one pass without allocation, reads nothing past the end, and takes any bytes.
namespace handoff::json_text {

/// A position in a text; at the end every look returns NUL, which no rule accepts. For rules about the inside
/// of lists, which the host's scan does not show.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  char look() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool at_end() const { return at_ >= text_.size(); }
  std::size_t position() const { return at_; }
  void step() { ++at_; }
  /// The next byte that is no white space.
  char next_token();
  bool only_space_left();
  /// Steps over `c` if that is the next token.
  bool take(char c);
  /// Steps over the string that begins here, to just after its closing quote.
  void skip_string();
  /// Steps over the array or object that begins here; brackets are counted, not matched by kind.
  void skip_nested();
  /// Steps over a non-negative integer: digits, no leading zero, nothing that makes it a float.
  bool take_plain_integer();
  /// Steps over a list of those, which may be empty.
  bool take_plain_integers();

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

/// Whether what stands between a JSON string's quotes means `text`, which must be ASCII: any of its
/// characters may be spelled by its number, and who writes it that way must not be read differently by us and
/// by the engine.
bool spells(std::string_view spelled, std::string_view text);

/// Whether the engine would read this value as the integer one: 1, 1.0, "1", with pydantic's leniency.
bool reads_as_one(std::string_view value);

/// Whether the engine would read this value as true: true, 1, "yes", "on", with pydantic's leniency.
bool reads_as_true(std::string_view value);

/// The value of an unsigned integer spelled in plain digits; -1 for anything else, and beyond `most`.
std::int64_t plain_integer(std::string_view value, std::int64_t most);

/// Whether `value` is `{}`, white space inside included.
bool is_empty_object(std::string_view value);

/// How many prompts a value stands for: a list of token ids is one prompt, a list of strings or of lists is
/// as many as it has items. 2 means two or more.
enum class PromptCount : std::uint8_t { none, one, several };
PromptCount count_prompts(std::string_view value);

}  // namespace handoff::json_text
