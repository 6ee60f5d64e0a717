#include "shared/config/codec.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "shared/config/printable.hpp"

namespace handoff::config {
namespace {

constexpr std::uint64_t kHighestPort = 65535;

std::optional<std::uint64_t> read_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> read_within(std::string_view text, std::uint64_t min, std::uint64_t max) {
  const auto number = read_number(text);
  return number && *number >= min && *number <= max ? number : std::nullopt;
}

std::string range_text(const std::string& what, std::uint64_t min, std::uint64_t max) {
  if (max == kAnyNumber) return min == 0 ? what : what + " of at least " + std::to_string(min);
  return what + " from " + std::to_string(min) + " to " + std::to_string(max);
}

struct ByteUnit {
  std::string_view suffix;
  unsigned shift;
};
constexpr ByteUnit kByteUnits[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}};

std::optional<std::uint64_t> read_bytes(std::string_view text) {
  for (const auto& [suffix, shift] : kByteUnits) {
    if (!text.ends_with(suffix)) continue;
    const auto number = read_number(trim(text.substr(0, text.size() - suffix.size())));
    if (!number || *number > (kAnyNumber >> shift)) return std::nullopt;
    return *number << shift;
  }
  return read_number(text);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::optional<bool> read_boolean(std::string_view value) {
  const std::string word = lower(value);
  for (const std::string_view yes : {"true", "1", "yes", "on"}) {
    if (word == yes) return true;
  }
  for (const std::string_view no : {"false", "0", "no", "off"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

std::optional<std::vector<std::string>> read_list(std::string_view value) {
  std::vector<std::string> items;
  if (value.empty()) return items;
  for (std::size_t at = 0; at <= value.size();) {
    const std::size_t comma = std::min(value.find(',', at), value.size());
    const auto item = trim(value.substr(at, comma - at));
    if (item.empty()) return std::nullopt;
    items.emplace_back(item);
    at = comma + 1;
  }
  return items;
}

std::string write_text(const std::string& value) {
  return value;
}
std::string write_number(const std::uint64_t& value) {
  return std::to_string(value);
}
std::optional<std::string> read_text(std::string_view value) {
  return std::string(value);
}

}  // namespace

Codec<std::uint16_t> port(ZeroPort zero) {
  const std::uint64_t min = zero == ZeroPort::allowed ? 0 : 1;
  auto read = [min](std::string_view value) -> std::optional<std::uint16_t> {
    const auto number = read_within(value, min, kHighestPort);
    return number ? std::optional(static_cast<std::uint16_t>(*number)) : std::nullopt;
  };
  return {.accepts = range_text("a port", min, kHighestPort),
          .unit = {},
          .read = std::move(read),
          .write = [](const std::uint16_t& value) { return std::to_string(value); }};
}

Codec<std::uint64_t> whole_number(std::uint64_t min, std::uint64_t max) {
  return {.accepts = range_text("a whole number", min, max),
          .unit = {},
          .read = [min, max](std::string_view value) { return read_within(value, min, max); },
          .write = write_number};
}

Codec<std::chrono::milliseconds> milliseconds(std::chrono::milliseconds min, std::chrono::milliseconds max) {
  const auto low = static_cast<std::uint64_t>(min.count());
  const auto high = static_cast<std::uint64_t>(max.count());
  auto read = [low, high](std::string_view value) -> std::optional<std::chrono::milliseconds> {
    const auto number = read_within(value, low, high);
    if (!number) return std::nullopt;
    return std::chrono::milliseconds(static_cast<std::int64_t>(*number));
  };
  return {.accepts = range_text("a whole number of milliseconds", low, high),
          .unit = "ms",
          .read = std::move(read),
          .write = [](const std::chrono::milliseconds& value) { return std::to_string(value.count()); }};
}

Codec<std::uint64_t> byte_count(std::uint64_t min, std::uint64_t max) {
  auto read = [min, max](std::string_view value) -> std::optional<std::uint64_t> {
    const auto number = read_bytes(value);
    return number && *number >= min && *number <= max ? number : std::nullopt;
  };
  return {.accepts = range_text("a whole number of bytes (also with KiB, MiB or GiB)", min, max),
          .unit = "bytes",
          .read = std::move(read),
          .write = write_number};
}

Codec<bool> boolean() {
  return {.accepts = "true or false (also 1/0, yes/no, on/off)",
          .unit = {},
          .read = read_boolean,
          .write = [](const bool& value) { return std::string(value ? "true" : "false"); },
          .is_switch = true};
}

Codec<std::string> text() {
  return {.accepts = "text", .unit = {}, .read = read_text, .write = write_text};
}

Codec<std::string> one_of(std::vector<std::string> words) {
  std::string accepts = words.size() == 1 ? words.front() : "one of " + join(words, ", ");
  auto read = [words = std::move(words)](std::string_view value) -> std::optional<std::string> {
    if (std::find(words.begin(), words.end(), value) == words.end()) return std::nullopt;
    return std::string(value);
  };
  return {.accepts = std::move(accepts), .unit = {}, .read = std::move(read), .write = write_text};
}

Codec<std::vector<std::string>> comma_list() {
  return {.accepts = "a list separated by commas, without empty items",
          .unit = {},
          .read = read_list,
          .write = [](const std::vector<std::string>& items) { return join(items, ","); }};
}

Codec<std::string> file_path(FilePresence presence) {
  if (presence == FilePresence::any) {
    return {.accepts = "a path", .unit = {}, .read = read_text, .write = write_text};
  }
  auto read = [](std::string_view value) -> std::optional<std::string> {
    std::string path(value);
    if (::access(path.c_str(), R_OK) != 0) return std::nullopt;
    return path;
  };
  return {.accepts = "the path of a readable file", .unit = {}, .read = std::move(read), .write = write_text};
}

}  // namespace handoff::config
