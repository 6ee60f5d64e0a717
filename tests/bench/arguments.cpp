#include "arguments.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace bench {
namespace {

[[noreturn]] void refuse(std::string_view name, std::string_view why) {
  std::fprintf(stderr, "error: %.*s: %.*s\n", static_cast<int>(name.size()), name.data(),
               static_cast<int>(why.size()), why.data());
  std::exit(2);
}

std::uint64_t parse_number(std::string_view name, std::string_view text, std::uint64_t low,
                           std::uint64_t high) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(name, "not a whole number");
  if (value < low || value > high) {
    refuse(name, "must be " + std::to_string(low) + ".." + std::to_string(high));
  }
  return value;
}

}  // namespace

Arguments::Arguments(int argc, char** argv, std::initializer_list<std::string_view> known) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--") {
      command_.assign(argv + i + 1, argv + argc);
      break;
    }
    if (std::find(known.begin(), known.end(), name) == known.end()) refuse(name, "unknown argument");
    if (i + 1 >= argc) refuse(name, "needs a value");
    values_.emplace_back(name, argv[++i]);
  }
  command_.push_back(nullptr);
}

std::uint64_t Arguments::number(std::string_view name, std::uint64_t fallback, std::uint64_t low,
                                std::uint64_t high) const {
  return has(name) ? parse_number(name, text(name, ""), low, high) : fallback;
}

std::string Arguments::text(std::string_view name, std::string_view fallback) const {
  for (const auto& [key, value] : values_) {
    if (key == name) return value;
  }
  return std::string(fallback);
}

std::vector<std::string> Arguments::all(std::string_view name) const {
  std::vector<std::string> found;
  for (const auto& [key, value] : values_) {
    if (key == name) found.push_back(value);
  }
  return found;
}

bool Arguments::has(std::string_view name) const {
  return std::any_of(values_.begin(), values_.end(), [&](const auto& entry) { return entry.first == name; });
}

std::vector<int> parse_pids(const std::string& list) {
  std::vector<int> pids;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    pids.push_back(
        static_cast<int>(parse_number("--watch-pids", list.substr(begin, end - begin), 1, 1U << 30U)));
    begin = end + 1;
  }
  return pids;
}

}  // namespace bench
