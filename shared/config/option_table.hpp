#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/config/codec.hpp"
#include "shared/config/environment.hpp"

namespace handoff::config {

/// Another environment name for an option. It counts only when neither the flag nor the main name is given.
struct Alias {
  std::string name;
  /// Spellings of this name and what they mean for the option; a meaning of "" is "not set". When there are
  /// any, other values are refused; without any, values are the option's own.
  std::vector<std::pair<std::string, std::string>> spellings{};
  bool any_case = false;  ///< spellings match in upper and lower case
};

/// A row of the table, but for its type.
struct OptionSpec {
  std::string name;  ///< environment name: upper case, digits and underscores
  std::string help;  ///< one sentence
  std::vector<Alias> aliases{};
  std::string accepts{};  ///< finishes "it takes …" where the type's own words say too little
  bool secret = false;    ///< the value is never printed
  bool required = false;  ///< a program without it does not start
  /// A rule beyond the type, on the trimmed text: an error text that finishes "NAME …", or nothing. It must
  /// not repeat a secret. Called after the codec has accepted the value.
  std::function<std::optional<std::string>(std::string_view)> validate{};
};

/// What the command line asks for instead of a run.
enum class Request : std::uint8_t { run, help, version, print_config };

struct ParseResult {
  Request request = Request::run;
  std::vector<std::string> problems;  ///< each names its setting and source, and what is accepted
  std::vector<std::string> warnings;  ///< environment names that look like ours and aren't

  bool ok() const { return problems.empty(); }
};

/// The type of an option that is declared at run time, by a backend plugin.
enum class DeclaredKind : std::uint8_t {
  text,
  boolean,
  whole_number,
  milliseconds,
  byte_count,
  port,
  file_path
};

/// Values of run-time options by name, in plain spelling: true or false, bytes without a suffix.
using DeclaredValues = std::map<std::string, std::string, std::less<>>;

/// The one declaration of a program's options. Each row is an environment name and the flag derived from it
/// (DYN_SIDECAR_PORT and --port), bound to a field whose value at that time is the default.
///
/// Built and used at start-up on one thread. It refers to the bound fields, which must outlive it. Wrong
/// declarations (bad or repeated names) throw std::invalid_argument; wrong values never throw.
class OptionTable {
 public:
  /// Unknown environment names with one of these prefixes are warned about, as they are likely misspelled.
  explicit OptionTable(std::vector<std::string> own_prefixes = {}) : own_prefixes_(std::move(own_prefixes)) {}

  /// Starts a group of rows in help and docs.
  void section(std::string heading);

  /// Adds a row.
  void add(OptionSpec spec, Binding binding);

  /// Adds a row: `table.add({.name = "DYN_SIDECAR_PORT", .help = "…"}, config.port, port())`.
  template <class Field, class T>
  void add(OptionSpec spec, Field& field, Codec<T> codec) {
    add(std::move(spec), bind(field, std::move(codec)));
  }

  /// Adds a row that is known only at run time; its value goes to `values[spec.name]`, at once the default.
  /// `values` must outlive the table.
  void add_declared(OptionSpec spec, DeclaredKind kind, const std::string& default_value,
                    DeclaredValues& values);

  /// A rule over several fields, checked after all values are read: an error text, or nothing.
  void add_check(std::function<std::optional<std::string>()> check);

  /// The text that `name` will get, or nothing where the default holds; needed before further rows can be
  /// added. Says nothing about problems: `parse` will.
  std::optional<std::string> peek(std::string_view name, const std::vector<std::string>& arguments,
                                  const Environment& environment) const;

  /// Sets every field from its flag, else its environment name, else its aliases. Goes on after a problem, so
  /// that all are reported at once; a field whose value is refused keeps its default. `arguments` come
  /// without the program's name. An empty environment value counts as unset.
  ParseResult parse(const std::vector<std::string>& arguments, const Environment& environment);

  /// For --help.
  std::string help_text(std::string_view program) const;

  /// For --print-config and the start-up log: NAME=value lines of the present values, secrets as ***.
  std::string print_config() const;

  /// Tables for the docs, one per section.
  std::string markdown_table() const;

 private:
  struct Row {
    OptionSpec spec;
    Binding binding;
    std::string flag;
    std::string default_text;
    std::size_t section;
  };
  struct Source {
    std::string described;  ///< "--port" or "environment variable DYN_SIDECAR_PORT"
    std::string value;
    bool is_environment;
  };
  class Reader;

  const Row* find_by_flag(std::string_view flag) const;
  const Row* find_by_name(std::string_view name) const;
  std::vector<std::string> flags() const;
  std::vector<std::string> environment_names() const;
  bool is_taken(std::string_view name) const;

  std::vector<std::string> own_prefixes_;
  std::vector<std::string> sections_;
  std::vector<Row> rows_;
  std::vector<std::function<std::optional<std::string>()>> checks_;
};

}  // namespace handoff::config
