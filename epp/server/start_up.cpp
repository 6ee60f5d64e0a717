#include "epp/server/start_up.hpp"

#include "shared/config/option_table.hpp"

namespace handoff::epp {
namespace {

constexpr const char* kProgram = "handoff-epp";

// No prompt has fewer than no tokens. The other policies can't do without a threshold.
bool never_leaves_prompts_to_decode(const PlanningConfig& planning) {
  return planning.conditional_disaggregation &&
         planning.conditional_policy == ConditionalPolicy::kIslBounding &&
         planning.conditional_isl_threshold == 0 && planning.conditional_isl_ratio_threshold.value_or(0) <= 0;
}

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
  if (config.tokenizer_protocol == TokenizerProtocol::kNone) {
    constexpr const char* kWhy = " is not used: DYN_EPP_TOKENIZER_PROTOCOL is none";
    if (!config.tokenizer_url.empty()) {
      warnings.emplace_back(std::string("DYN_EPP_TOKENIZER_SERVICE_URL") + kWhy);
    }
    if (config.planning.tokenizer_fallback == TokenizerFallback::kError) {
      warnings.emplace_back(std::string("DYN_EPP_TOKENIZER_FALLBACK") + kWhy);
    }
  }
  if (never_leaves_prompts_to_decode(config.planning)) {
    warnings.emplace_back(
        "DYN_ROUTER_CONDITIONAL_DISAGG has no effect: DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD and "
        "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD are 0 or not set");
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
