#include "epp/server/start_up.hpp"

#include "shared/config/option_table.hpp"

namespace handoff::epp {
namespace {

constexpr const char* kProgram = "handoff-epp";

// Settings that are well-formed, and can't do together what they seem to say.
void warn_of_contradictions(const EppConfig& config, std::vector<std::string>& warnings) {
  if (!config.secure_serving && !config.tls_certificate_path.empty()) {
    warnings.emplace_back("DYN_EPP_TLS_CERT_PATH is not used: DYN_SECURE_SERVING is false");
  }
  if (config.limits.max_buffered < config.limits.max_request_body) {
    warnings.emplace_back(
        "bodies above DYN_EPP_MAX_BUFFERED_BYTES get 503 for ever, though DYN_EPP_MAX_REQUEST_BODY_BYTES "
        "allows them");
  }
}

}  // namespace

StartUp read_settings(const std::vector<std::string>& arguments, const config::Environment& environment,
                      EppConfig& config) {
  config::OptionTable table({"DYN_EPP_", "DYN_ROUTER_"});
  declare_options(table, config);
  const auto parsed = table.parse(arguments, environment);
  StartUp result;
  if (parsed.request == config::Request::help) {
    result.what = StartUp::What::print_and_exit;
    result.text = table.help_text(kProgram);
  } else if (parsed.request == config::Request::version) {
    result.what = StartUp::What::print_and_exit;
    result.text = std::string(kProgram) + " " + HANDOFF_VERSION + "\n";
  } else if (!parsed.ok()) {
    result.what = StartUp::What::refuse;
    result.text = std::string(kProgram) + ": cannot start:\n";
    for (const auto& problem : parsed.problems) result.text += "  " + problem + "\n";
    // A misspelt name may be why a setting is missing.
    for (const auto& warning : parsed.warnings) result.text += "  also: " + warning + "\n";
    result.text += "See " + std::string(kProgram) + " --help.\n";
  } else {
    result.warnings = parsed.warnings;
    warn_of_contradictions(config, result.warnings);
    if (parsed.request == config::Request::print_config) {
      result.what = StartUp::What::print_and_exit;
      result.text = table.print_config();
    }
  }
  return result;
}

}  // namespace handoff::epp
