// `--name value` flags of the measuring tools.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

class Arguments {
 public:
  // Exits 2 with one line for an unknown name or a missing value. Everything after `--` is kept as the
  // command.
  Arguments(int argc, char** argv, std::initializer_list<std::string_view> known);

  // Exits 2 unless the value is a whole number in the range.
  std::uint64_t number(std::string_view name, std::uint64_t fallback, std::uint64_t low,
                       std::uint64_t high) const;
  std::string text(std::string_view name, std::string_view fallback) const;
  std::vector<std::string> all(std::string_view name) const;
  bool has(std::string_view name) const;
  // The pointers of argv behind `--`, ended by a null pointer as execvp wants it.
  const std::vector<char*>& command() const { return command_; }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<char*> command_;
};

// Comma list of process ids; exits 2 if it is none.
std::vector<int> parse_pids(const std::string& list);

}  // namespace bench
