// What the table prints: help, effective values, documentation.
#include "shared/config/option_table.hpp"
#include "shared/config/printable.hpp"

namespace handoff::config {
namespace {

constexpr std::string_view kMask = "***";

/// Inside a table cell a bar would end the cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string code(std::string_view text) {
  return "`" + cell(text) + "`";
}

/// ` (a = b, c = none)`: what an alias accepts, and which value of the option each word stands for.
std::string spellings_of(const Alias& alias, bool as_code) {
  if (alias.spellings.empty()) return {};
  std::string out;
  for (const auto& [spelling, meaning] : alias.spellings) {
    out += out.empty() ? " (" : ", ";
    out += as_code ? code(spelling) : spelling;
    if (meaning != spelling) out += " = " + (meaning.empty() ? "not set" : as_code ? code(meaning) : meaning);
  }
  return out + ")";
}

}  // namespace

std::string OptionTable::help_text(std::string_view program) const {
  std::string out = "Usage: " + std::string(program) +
                    " [--name value | --name=value]...\n"
                    "A flag wins over its environment variable.\n\n"
                    "  --help, -h        print this text\n"
                    "  --version         print the version\n"
                    "  --print-config    print the values in effect\n";
  for (std::size_t section = 0; section < sections_.size(); ++section) {
    bool has_rows = false;
    for (const Row& row : rows_) {
      if (row.section != section) continue;
      if (!has_rows) out += "\n" + sections_[section] + ":\n";
      has_rows = true;
      out += "  --" + row.flag + "\n      " + row.spec.help + "\n      Takes " + row.binding.accepts + ".\n";
      if (!row.spec.secret && !row.default_text.empty()) {
        out += "      Default: " + printable(row.default_text) +
               (row.binding.unit.empty() ? "" : " " + row.binding.unit) + ".\n";
      }
      out += "      Environment: " + row.spec.name;
      for (const Alias& alias : row.spec.aliases) out += ", " + alias.name + spellings_of(alias, false);
      out += "\n";
    }
  }
  return out;
}

std::string OptionTable::print_config() const {
  std::string out;
  for (const Row& row : rows_) {
    const std::string value = row.binding.show();
    out += row.spec.name + "=";
    out += row.spec.secret && !value.empty() ? std::string(kMask) : printable(value);
    out += "\n";
  }
  return out;
}

std::string OptionTable::markdown_table() const {
  std::string out;
  for (std::size_t section = 0; section < sections_.size(); ++section) {
    bool has_rows = false;
    for (const Row& row : rows_) {
      if (row.section != section) continue;
      if (!has_rows) {
        if (!out.empty()) out += "\n";
        out += "### " + sections_[section] +
               "\n\n| Environment | Flag | Default | Accepts | Meaning |\n|---|---|---|---|---|\n";
        has_rows = true;
      }
      out += "| " + code(row.spec.name);
      for (const Alias& alias : row.spec.aliases) out += ", " + code(alias.name) + spellings_of(alias, true);
      const bool show_default = !row.spec.secret && !row.default_text.empty();
      out += " | " + code("--" + row.flag) + " | " + (show_default ? code(row.default_text) : "–") + " | " +
             cell(row.binding.accepts) + " | " + cell(row.spec.help) + " |\n";
    }
  }
  return out;
}

}  // namespace handoff::config
