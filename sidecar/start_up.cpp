#include "sidecar/start_up.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "shared/config/option_table.hpp"
#include "shared/config/setting_file.hpp"

namespace handoff::sidecar {
namespace {

constexpr std::string_view kProgram = "handoff-sidecar";
constexpr std::string_view kVersion = HANDOFF_VERSION;
constexpr std::size_t kLargestSettingFile = 64 * 1024;

bool means_none(std::string_view backend) {
  return backend.empty() || backend == "none" || backend == "unavailable";
}

config::DeclaredKind kind_of(const BackendConfigKey& key) {
  switch (key.kind) {
    case HANDOFF_CONFIG_BOOL:
      return config::DeclaredKind::boolean;
    case HANDOFF_CONFIG_UINT:
      return config::DeclaredKind::whole_number;
    case HANDOFF_CONFIG_DURATION_MS:
      return config::DeclaredKind::milliseconds;
    case HANDOFF_CONFIG_BYTES:
      return config::DeclaredKind::byte_count;
    case HANDOFF_CONFIG_PORT:
      return config::DeclaredKind::port;
    case HANDOFF_CONFIG_FILE:
      return config::DeclaredKind::file_path;
    default:
      return config::DeclaredKind::text;
  }
}

bool is_one_of(std::string_view value, std::string_view comma_list) {
  while (true) {
    const auto comma = comma_list.find(',');
    auto word = comma_list.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    if (word == value) return true;
    if (comma == std::string_view::npos) return false;
    comma_list.remove_prefix(comma + 1);
  }
}

constexpr std::string_view kOurPrefix = "DYN_SIDECAR_";

/// The earlier key that this one is another name for; null: none.
const BackendConfigKey* main_key_of(const LoadedBackend& backend, const BackendConfigKey& key) {
  for (const auto& other : backend.config_keys()) {
    if (&other == &key) return nullptr;
    if (other.name.starts_with(kOurPrefix) && other.name.substr(kOurPrefix.size()) == key.name) return &other;
  }
  return nullptr;
}

void declare_backend_keys(config::OptionTable& table, const LoadedBackend& backend,
                          config::DeclaredValues& values) {
  if (backend.config_keys().empty()) return;
  table.section("Backend " + std::string(backend.name()));
  for (const auto& key : backend.config_keys()) {
    if (main_key_of(backend, key) != nullptr) continue;
    if (values.count(std::string(key.name)) > 0) continue;  // several backends have it: documented once
    config::OptionSpec spec{
        .name = std::string(key.name), .help = std::string(key.help), .secret = key.secret};
    for (const auto& other : backend.config_keys()) {
      if (main_key_of(backend, other) == &key) spec.aliases.push_back({.name = std::string(other.name)});
    }
    if (key.kind == HANDOFF_CONFIG_CHOICE) {
      spec.accepts = "one of " + std::string(key.accepts);
      spec.validate = [accepts = key.accepts](std::string_view value) -> std::optional<std::string> {
        if (is_one_of(value, accepts)) return std::nullopt;
        return "takes one of " + std::string(accepts);
      };
    }
    table.add_declared(std::move(spec), kind_of(key), std::string(key.default_value), values);
  }
}

// Backends do no I/O, so a setting that names a file is handed over as the file's content.
std::string read_setting_file(const std::string& name, const std::string& path,
                              std::vector<std::string>& problems) {
  config::SettingFile file = config::read_setting_file(path, kLargestSettingFile);
  if (file.error.empty() && file.text.empty()) file.error = "is empty";
  if (!file.error.empty()) problems.push_back(name + ": the file '" + path + "' " + file.error);
  return std::move(file.text);
}

std::string as_list(const std::vector<std::string>& problems) {
  std::string text = std::string(kProgram) + ": cannot start:\n";
  for (const auto& problem : problems) text += "  " + problem + "\n";
  return text + "See " + std::string(kProgram) + " --help.\n";
}

}  // namespace

StartUp prepare(const std::vector<std::string>& arguments, const config::Environment& environment) {
  StartUp result;
  auto& config = result.plan.config;
  config::OptionTable table({"DYN_SIDECAR_"});
  declare_options(table, config);
  std::vector<std::string> problems;

  // The backend declares settings of its own, so it is loaded before the rest is read.
  const auto backend = table.peek("DYN_SIDECAR_BACKEND", arguments, environment).value_or(config.backend);
  if (!means_none(backend)) {
    try {
      const auto dir = table.peek("DYN_SIDECAR_BACKEND_DIR", arguments, environment).value_or(std::string());
      result.plan.backend = load_backend(resolve_backend_path(backend, dir));
    } catch (const BackendLoadError& error) {
      problems.emplace_back(std::string("DYN_SIDECAR_BACKEND (--backend): ") + error.what());
    }
  }
  config::DeclaredValues declared;
  if (result.plan.backend) declare_backend_keys(table, *result.plan.backend, declared);

  auto parsed = table.parse(arguments, environment);
  if (parsed.request == config::Request::help) {
    return result.what = StartUp::What::print_and_exit, result.text = table.help_text(kProgram), result;
  }
  if (parsed.request == config::Request::version) {
    result.text = std::string(kProgram) + " " + std::string(kVersion) + "\n";
    return result.what = StartUp::What::print_and_exit, result;
  }
  result.warnings = std::move(parsed.warnings);
  problems.insert(problems.end(), parsed.problems.begin(), parsed.problems.end());

  auto allowlist = parse_prefill_allowlist(config.prefill_allowlist);
  if (auto* rules = std::get_if<PrefillAllowlist>(&allowlist)) result.plan.allowlist = std::move(*rules);
  result.plan.usual_prefill = read_configured_endpoint(config.prefill_endpoint);
  if (result.plan.usual_prefill && means_none(backend))
    problems.emplace_back("DYN_SIDECAR_PREFILL_ENDPOINT needs a backend: set DYN_SIDECAR_BACKEND");
  result.plan.local_engine = make_engine_address("localhost", config.engine_port);
  const auto loops = loop_count(config);
  if (config.max_request_bytes > config.max_buffered_bytes / loops) {
    result.warnings.push_back(
        "DYN_SIDECAR_MAX_REQUEST_BYTES is above what one of " + std::to_string(loops) +
        " event loops may hold, its share of DYN_SIDECAR_MAX_BUFFERED_BYTES: the largest requests always get "
        "503");
  }
  if (config.port != 0 && config.port == config.engine_port) {
    problems.emplace_back(
        "DYN_SIDECAR_PORT and DYN_DECODE_ENGINE_PORT are the same port: the sidecar would call itself");
  }
  if (config.admin_port == std::to_string(config.engine_port)) {
    problems.emplace_back("DYN_SIDECAR_ADMIN_PORT and DYN_DECODE_ENGINE_PORT are the same port");
  }
  if (config.port != 0 && config.admin_port == std::to_string(config.port)) {
    problems.emplace_back("DYN_SIDECAR_ADMIN_PORT and DYN_SIDECAR_PORT are the same port");
  }
  if (result.plan.backend && result.plan.backend->needs_prefill() &&
      config.on_prefill_failure == OnPrefillFailure::decode_only) {
    problems.push_back("DYN_SIDECAR_ON_PREFILL_FAILURE: decode-only is not possible with backend " +
                       std::string(result.plan.backend->name()) +
                       ", whose decode engine can't prefill; use error");
  }
  if (result.plan.backend) {
    result.plan.guard = ForgeryGuard(result.plan.backend->reserved_fields());
    for (const auto& key : result.plan.backend->config_keys()) {
      const auto* main_key = main_key_of(*result.plan.backend, key);
      auto value = declared[std::string(main_key == nullptr ? key.name : main_key->name)];
      if (key.kind == HANDOFF_CONFIG_FILE && !value.empty()) {
        value = read_setting_file(std::string(key.name), value, problems);
      }
      result.backend_values.push_back(std::move(value));
    }
  }
  if (!problems.empty()) {
    result.what = StartUp::What::refuse;
    // A misspelt name may be why a setting is missing.
    for (const auto& warning : result.warnings) problems.push_back("also: " + warning);
    result.text = as_list(problems);
    return result;
  }
  result.settings = table.print_config();
  if (parsed.request == config::Request::print_config) {
    result.what = StartUp::What::print_and_exit;
    result.text = result.settings;
  }
  return result;
}

std::string settings_markdown(const std::vector<std::string>& backends) {
  SidecarConfig config;
  config::DeclaredValues declared;
  config::OptionTable table;
  declare_options(table, config);
  std::vector<LoadedBackend> loaded;  // the rows refer to their texts
  for (const auto& backend : backends) {
    loaded.push_back(load_backend(resolve_backend_path(backend, {})));
    declare_backend_keys(table, loaded.back(), declared);
  }
  return table.markdown_table();
}

}  // namespace handoff::sidecar
