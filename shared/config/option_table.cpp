#include "shared/config/option_table.hpp"

#include <algorithm>
#include <stdexcept>

#include "shared/config/command_line.hpp"
#include "shared/config/kubernetes_names.hpp"
#include "shared/config/printable.hpp"
#include "shared/json/utf8.hpp"

namespace handoff::config {
namespace {

struct RequestFlag {
  std::string_view flag;
  Request request;
};
constexpr RequestFlag kRequestFlags[] = {
    {"help", Request::help}, {"version", Request::version}, {"print-config", Request::print_config}};

std::optional<Request> request_of(std::string_view flag) {
  for (const auto& [name, request] : kRequestFlags) {
    if (name == flag) return request;
  }
  return std::nullopt;
}

bool is_environment_name(std::string_view name) {
  const auto fits = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') && std::all_of(name.begin(), name.end(), fits);
}

std::string to_flag(std::string_view name) {
  for (const std::string_view prefix : {"DYN_SIDECAR_", "DYN_EPP_", "DYN_"}) {
    if (name.starts_with(prefix) && name.size() > prefix.size()) {
      name.remove_prefix(prefix.size());
      break;
    }
  }
  std::string flag(name);
  for (char& c : flag) {
    if (c == '_') c = '-';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return flag;
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_word(std::string_view a, std::string_view b, bool any_case) {
  if (!any_case) return a == b;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

template <class T>
Binding bind_declared(DeclaredValues& values, const std::string& name, Codec<T> codec) {
  Binding binding{
      .accepts = codec.accepts, .unit = codec.unit, .is_switch = codec.is_switch, .assign = {}, .show = {}};
  binding.assign = [&values, name, codec](std::string_view text) {
    const auto parsed = codec.read(text);
    if (parsed) values[name] = codec.write(*parsed);
    return parsed.has_value();
  };
  binding.show = [&values, name] { return values[name]; };
  return binding;
}

Binding bind_declared(DeclaredValues& values, const std::string& name, DeclaredKind kind) {
  switch (kind) {
    case DeclaredKind::boolean:
      return bind_declared(values, name, boolean());
    case DeclaredKind::whole_number:
      return bind_declared(values, name, whole_number());
    case DeclaredKind::milliseconds:
      return bind_declared(values, name, milliseconds(std::chrono::milliseconds(0)));
    case DeclaredKind::byte_count:
      return bind_declared(values, name, byte_count());
    case DeclaredKind::port:
      return bind_declared(values, name, port());
    case DeclaredKind::file_path:
      return bind_declared(values, name, file_path());
    case DeclaredKind::text:
      break;
  }
  return bind_declared(values, name, text());
}

}  // namespace

/// One pass over arguments and environment; collects problems as it goes.
class OptionTable::Reader {
 public:
  Reader(const OptionTable& table, const std::vector<std::string>& arguments, const Environment& environment)
      : table_(table), environment_(environment), line_(split_arguments(arguments, [](std::string_view flag) {
          return !request_of(flag).has_value();
        })) {}

  /// Where a row's value comes from; nothing for the default.
  std::optional<Source> source_of(const Row& row) {
    // The last of repeated flags wins, so that a wrapper's defaults can be overridden.
    for (auto flag = line_.flags.rbegin(); flag != line_.flags.rend(); ++flag) {
      if (flag->name == row.flag) return from_flag(row, *flag);
    }
    if (const auto value = environment_.find(row.spec.name)) return from_environment(row.spec.name, *value);
    return from_aliases(row);
  }

  void read_command_line() {
    for (const Flag& flag : line_.flags) {
      if (const auto request = request_of(flag.name)) {
        // --help answers even where something else is asked for too.
        if (result_.request != Request::help) result_.request = *request;
        if (flag.value) problem("--" + flag.name + " takes no value");
      } else if (table_.find_by_flag(flag.name) == nullptr) {
        problem("--" + printable(flag.name) + " is unknown" + suggestion(flag.name, table_.flags(), "--"));
      }
    }
    for (const std::size_t place : line_.strays) {
      problem("argument " + std::to_string(place) +
              " belongs to no flag; write --name value or --name=value");
    }
  }

  void read_row(const Row& row) {
    const std::size_t before = result_.problems.size();
    const auto source = source_of(row);
    if (source) {
      if (const auto fault = fault_of(row, *source))
        problem(row.spec.name + " (" + beside_name(row, *source) + ") " + *fault);
    }
    // Of one whose value is refused that is all there is to say.
    const bool is_missing = !source || row.binding.show().empty();
    if (row.spec.required && is_missing && result_.problems.size() == before) {
      problem(row.spec.name + " is required");
    }
  }

  void warn_of_unknown_names() {
    const auto known = table_.environment_names();
    for (const auto& variable : environment_.variables()) {
      const std::string& name = variable.first;
      const auto& prefixes = table_.own_prefixes_;
      const bool ours = std::any_of(prefixes.begin(), prefixes.end(),
                                    [&name](const std::string& prefix) { return name.starts_with(prefix); });
      if (table_.is_taken(name)) continue;
      if (!ours) {
        warn_of_near_miss(name, known);
        continue;
      }
      result_.warnings.push_back("environment variable " + printable(name) + " is ignored: " +
                                 (is_service_link_name(name)
                                      ? std::string(kServiceLinksAdvice)
                                      : "no such option" + suggestion(name, known, "")));
    }
  }

  // A name that may be another program's is told of only where it is all but one of ours.
  void warn_of_near_miss(const std::string& name, const std::vector<std::string>& known) {
    constexpr std::size_t kMostWrong = 2;
    const auto first_word = name.substr(0, name.find('_') + 1);
    const bool may_be_ours =
        !first_word.empty() && std::any_of(known.begin(), known.end(), [&](const std::string& each) {
          return each.starts_with(first_word);
        });
    if (!may_be_ours) return;
    if (const auto close = nearest(name, known, kMostWrong)) {
      result_.warnings.push_back("environment variable " + printable(name) + " is ignored; did you mean " +
                                 *close + "?");
    }
  }

  void problem(std::string text) { result_.problems.push_back(std::move(text)); }

  ParseResult take_result() { return std::move(result_); }

 private:
  static std::string suggestion(std::string_view name, const std::vector<std::string>& known,
                                std::string_view dashes) {
    const auto close = nearest(name, known);
    return close ? "; did you mean " + std::string(dashes) + *close + "?" : "";
  }

  std::optional<Source> from_flag(const Row& row, const Flag& flag) {
    if (!flag.value && !row.binding.is_switch) {
      problem(row.spec.name + " (--" + flag.name + ") has no value; it takes " + row.binding.accepts);
      return std::nullopt;
    }
    return Source{"--" + flag.name, flag.value.value_or("true"), false};
  }

  // Where the value came from, for a sentence that begins with the setting's name: not that name once more.
  static std::string beside_name(const Row& row, const Source& source) {
    return source.described == from_environment(row.spec.name, {}).described ? "environment variable"
                                                                             : source.described;
  }

  static Source from_environment(const std::string& name, std::string_view value) {
    return {"environment variable " + name, std::string(value), true};
  }

  std::optional<Source> from_aliases(const Row& row) {
    std::optional<Source> chosen;
    for (const Alias& alias : row.spec.aliases) {
      const auto value = environment_.find(alias.name);
      if (!value) continue;
      const auto meaning = meaning_of(row, alias, *value);
      if (!meaning || (meaning->empty() && !alias.spellings.empty())) continue;
      Source source = from_environment(alias.name, *meaning);
      if (!chosen) {
        chosen = std::move(source);
      } else if (chosen->value != source.value) {
        problem(row.spec.name + " is contradictory: " + chosen->described + " and " + source.described +
                " ask for different values; set " + row.spec.name + " or one of them");
      }
    }
    return chosen;
  }

  std::optional<std::string> meaning_of(const Row& row, const Alias& alias, std::string_view value) {
    if (alias.spellings.empty()) return std::string(value);
    std::vector<std::string> words;
    for (const auto& [spelling, meaning] : alias.spellings) {
      if (same_word(spelling, value, alias.any_case)) return meaning;
      words.push_back(spelling);
    }
    problem(row.spec.name + " (environment variable " + alias.name + ") " + refusal(row, value) +
            "; it takes " + join(words, ", "));
    return std::nullopt;
  }

  static std::string refusal(const Row& row, std::string_view value) {
    return row.spec.secret ? "does not accept its value (not shown)" : "does not accept " + in_quotes(value);
  }

  static std::optional<std::string> fault_of(const Row& row, const Source& source) {
    if (!json::is_valid_utf8(source.value)) return "is not UTF-8; it takes " + row.binding.accepts;
    if (source.value.find('\0') != std::string::npos) return "holds a NUL; it takes " + row.binding.accepts;
    if (!row.binding.assign(source.value)) {
      std::string fault = refusal(row, source.value) + "; it takes " + row.binding.accepts;
      if (source.is_environment && is_service_link_value(source.value)) {
        fault += ". " + std::string(kServiceLinksAdvice);
      }
      return fault;
    }
    if (!row.spec.validate) return std::nullopt;
    auto fault = row.spec.validate(source.value);
    if (!fault) return std::nullopt;
    row.binding.assign(row.default_text);
    const bool says_what_it_takes = fault->starts_with("takes ");
    return says_what_it_takes ? refusal(row, source.value) + "; it " + *fault : *fault;
  }

  const OptionTable& table_;
  const Environment& environment_;
  CommandLine line_;
  ParseResult result_;
};

void OptionTable::section(std::string heading) {
  sections_.push_back(std::move(heading));
}

void OptionTable::add(OptionSpec spec, Binding binding) {
  std::string flag = to_flag(spec.name);
  if (request_of(flag) || find_by_flag(flag) != nullptr) {
    throw std::invalid_argument("option " + spec.name + ": the flag --" + flag + " is taken");
  }
  std::vector<std::string> names = {spec.name};
  for (const Alias& alias : spec.aliases) names.push_back(alias.name);
  for (const std::string& name : names) {
    if (!is_environment_name(name))
      throw std::invalid_argument("option " + printable(name) + ": not a valid name");
    if (is_taken(name)) throw std::invalid_argument("option " + name + ": the name is taken");
  }
  if (sections_.empty()) sections_.emplace_back("Options");
  std::string default_text = binding.show();
  if (!spec.accepts.empty()) binding.accepts = spec.accepts;
  rows_.push_back(
      {std::move(spec), std::move(binding), std::move(flag), std::move(default_text), sections_.size() - 1});
}

void OptionTable::add_declared(OptionSpec spec, DeclaredKind kind, const std::string& default_value,
                               DeclaredValues& values) {
  Binding binding = bind_declared(values, spec.name, kind);
  if (default_value.empty()) {
    values[spec.name] = "";
  } else if (!binding.assign(default_value)) {
    throw std::invalid_argument("option " + spec.name + ": its default is not " + binding.accepts);
  }
  add(std::move(spec), std::move(binding));
}

void OptionTable::add_check(std::function<std::optional<std::string>()> check) {
  checks_.push_back(std::move(check));
}

std::optional<std::string> OptionTable::peek(std::string_view name, const std::vector<std::string>& arguments,
                                             const Environment& environment) const {
  const Row* row = find_by_name(name);
  if (row == nullptr) throw std::invalid_argument("no option " + std::string(name));
  const auto source = Reader(*this, arguments, environment).source_of(*row);
  return source ? std::optional(source->value) : std::nullopt;
}

ParseResult OptionTable::parse(const std::vector<std::string>& arguments, const Environment& environment) {
  Reader reader(*this, arguments, environment);
  reader.read_command_line();
  for (const Row& row : rows_) reader.read_row(row);
  for (const auto& check : checks_) {
    if (auto fault = check()) reader.problem(std::move(*fault));
  }
  reader.warn_of_unknown_names();
  return reader.take_result();
}

const OptionTable::Row* OptionTable::find_by_flag(std::string_view flag) const {
  const auto found =
      std::find_if(rows_.begin(), rows_.end(), [flag](const Row& row) { return row.flag == flag; });
  return found == rows_.end() ? nullptr : &*found;
}

const OptionTable::Row* OptionTable::find_by_name(std::string_view name) const {
  const auto found =
      std::find_if(rows_.begin(), rows_.end(), [name](const Row& row) { return row.spec.name == name; });
  return found == rows_.end() ? nullptr : &*found;
}

std::vector<std::string> OptionTable::flags() const {
  std::vector<std::string> out;
  for (const Row& row : rows_) out.push_back(row.flag);
  for (const auto& request : kRequestFlags) out.emplace_back(request.flag);
  return out;
}

std::vector<std::string> OptionTable::environment_names() const {
  std::vector<std::string> out;
  for (const Row& row : rows_) {
    out.push_back(row.spec.name);
    for (const Alias& alias : row.spec.aliases) out.push_back(alias.name);
  }
  return out;
}

bool OptionTable::is_taken(std::string_view name) const {
  const auto names = environment_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace handoff::config
