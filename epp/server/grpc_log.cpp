#include "epp/server/grpc_log.hpp"

#include <grpc/support/log.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "shared/telemetry/log.hpp"
#include "shared/telemetry/rate_limited_warning.hpp"

namespace handoff::epp {
namespace {

using telemetry::Level;
using telemetry::LogLine;

constexpr std::chrono::seconds kWarningInterval{10};

// Without destructors: gRPC may log as long as there are threads.
constinit thread_local std::array<char, 512> last_error{};
telemetry::RateLimitedWarning errors{kWarningInterval};

void keep(std::string_view message) {
  const std::size_t length = std::min(message.size(), last_error.size() - 1);
  std::copy_n(message.begin(), length, last_error.begin());
  last_error[length] = '\0';
}

void on_line(gpr_log_func_args* line) {
  const std::string_view message = line->message;
  if (line->severity != GPR_LOG_SEVERITY_ERROR) {
    LogLine(Level::debug, "grpc").field("message", message);
    return;
  }
  keep(message);
  const auto suppressed = errors.try_pass();
  // What follows an assertion is the end, so nobody could be told later.
  if (!suppressed && !message.starts_with("assertion failed")) return;
  LogLine(Level::warn, "grpc").field("message", message).field("suppressed", suppressed.value_or(0));
}

}  // namespace

void log_grpc_as_ours() {
  gpr_set_log_function(on_line);
}

std::string last_grpc_error() {
  return last_error.data();
}

}  // namespace handoff::epp
