#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace handoff::config {

/// How a type is read from an option's text and written back. Whoever has an odd type writes a codec of their
/// own.
template <class T>
struct Codec {
  std::string accepts;                                     ///< finishes the sentence "it takes …"
  std::string unit;                                        ///< of a bare number, empty when there is none
  std::function<std::optional<T>(std::string_view)> read;  ///< trimmed UTF-8 text; nothing when not accepted
  std::function<std::string(const T&)> write;              ///< text that `read` accepts
  bool is_switch = false;                                  ///< the flag alone, without a value, means "true"
};

/// Whether port 0 (let the system choose) is accepted.
enum class ZeroPort : bool { refused, allowed };

/// Whether a path must name a readable file when options are parsed.
enum class FilePresence : bool { any, must_be_readable };

inline constexpr std::uint64_t kAnyNumber = std::numeric_limits<std::uint64_t>::max();
inline constexpr std::chrono::milliseconds kLongestTime = std::chrono::hours(24 * 7);

Codec<std::uint16_t> port(ZeroPort zero = ZeroPort::refused);

/// A decimal whole number; limits included.
Codec<std::uint64_t> whole_number(std::uint64_t min = 0, std::uint64_t max = kAnyNumber);

/// A whole number of milliseconds; limits included. Zero is refused unless `min` is zero.
Codec<std::chrono::milliseconds> milliseconds(std::chrono::milliseconds min = std::chrono::milliseconds(1),
                                              std::chrono::milliseconds max = kLongestTime);

/// A whole number of bytes, bare or with KiB, MiB or GiB; limits included.
Codec<std::uint64_t> byte_count(std::uint64_t min = 0, std::uint64_t max = kAnyNumber);

/// true/false, 1/0, yes/no, on/off, in any case.
Codec<bool> boolean();

Codec<std::string> text();

/// Text that is one of `words`, exactly.
Codec<std::string> one_of(std::vector<std::string> words);

/// Items separated by commas, blanks around them removed, empty items refused. Empty text is the empty list.
Codec<std::vector<std::string>> comma_list();

Codec<std::string> file_path(FilePresence presence = FilePresence::any);

/// An enumeration by its words, exactly.
template <class E>
Codec<E> choice(std::vector<std::pair<std::string, E>> words) {
  std::vector<std::string> spellings;
  for (const auto& word : words) spellings.push_back(word.first);
  const Codec<std::string> plain = one_of(std::move(spellings));
  auto read = [words](std::string_view value) -> std::optional<E> {
    for (const auto& [word, meaning] : words) {
      if (word == value) return meaning;
    }
    return std::nullopt;
  };
  auto write = [words](const E& value) -> std::string {
    for (const auto& [word, meaning] : words) {
      if (meaning == value) return word;
    }
    return {};
  };
  return {.accepts = plain.accepts, .unit = {}, .read = std::move(read), .write = std::move(write)};
}

/// An option's place and type with the type erased: what the table keeps of a field and its codec. Refers to
/// the field, which must outlive it.
struct Binding {
  std::string accepts;
  std::string unit;
  bool is_switch = false;
  std::function<bool(std::string_view)>
      assign;                         ///< false, and the field as it was, when the text isn't accepted
  std::function<std::string()> show;  ///< the field's present value; empty when it has none
};

template <class Wide, class Narrow>
concept WiderThan =
    std::same_as<Wide, Narrow> ||
    (std::unsigned_integral<Wide> && std::unsigned_integral<Narrow> && !std::same_as<Narrow, bool>);

/// Binds a field. An unsigned field may be narrower than its codec: what doesn't fit isn't accepted.
template <class T, WiderThan<T> Wide>
Binding bind(T& field, Codec<Wide> codec) {
  Binding binding{
      .accepts = codec.accepts, .unit = codec.unit, .is_switch = codec.is_switch, .assign = {}, .show = {}};
  binding.assign = [&field, read = codec.read](std::string_view value) {
    auto parsed = read(value);
    if (!parsed) return false;
    if constexpr (!std::same_as<T, Wide>) {
      if (*parsed > std::numeric_limits<T>::max()) return false;
      field = static_cast<T>(*parsed);
    } else {
      field = std::move(*parsed);
    }
    return true;
  };
  binding.show = [&field, write = codec.write] { return write(Wide{field}); };
  return binding;
}

/// Binds a field that may have no value, which empty text (from a flag) also means.
template <class T, WiderThan<T> Wide>
Binding bind(std::optional<T>& field, Codec<Wide> codec) {
  Binding binding{
      .accepts = codec.accepts, .unit = codec.unit, .is_switch = codec.is_switch, .assign = {}, .show = {}};
  binding.assign = [&field, codec](std::string_view value) {
    if (value.empty()) {
      field.reset();
      return true;
    }
    T parsed{};
    if (!bind(parsed, codec).assign(value)) return false;
    field = std::move(parsed);
    return true;
  };
  binding.show = [&field, write = codec.write] { return field ? write(Wide{*field}) : std::string(); };
  return binding;
}

}  // namespace handoff::config
