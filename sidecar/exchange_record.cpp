#include "sidecar/exchange_record.hpp"

#include "shared/backend_abi/decode_backend.h"
#include "shared/telemetry/log.hpp"

namespace handoff::sidecar {
namespace {

double to_ms(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

using telemetry::FieldName;

void log_leg(telemetry::LogLine& line, FieldName status_key, FieldName failure_key, FieldName connect_key,
             FieldName head_key, FieldName total_key, const LegRecord& leg) {
  if (!leg.used) return;
  if (leg.status != 0) line.field(status_key, leg.status);
  if (leg.failure != LegFailure::none) line.field(failure_key, name_of(leg.failure));
  const auto& times = leg.times;
  if (times.sent != Clock::time_point{}) line.field(connect_key, to_ms(times.sent - times.started));
  if (times.head != Clock::time_point{}) line.field(head_key, to_ms(times.head - times.started));
  if (times.done != Clock::time_point{}) line.field(total_key, to_ms(times.done - times.started));
}

telemetry::Level level_of(const ExchangeRecord& record) {
  // A probe asks every second: what changes its answer has a line of its own.
  const bool is_known = record.status < 400 || record.status == 503;
  if (record.is_probe && is_known) return telemetry::Level::debug;
  if (record.outcome == ExchangeOutcome::broken || record.status >= 500) return telemetry::Level::warn;
  return telemetry::Level::info;
}

}  // namespace

std::string_view name_of(ExchangeMode mode) {
  switch (mode) {
    case ExchangeMode::refused:
      return "refused";
    case ExchangeMode::local:
      return "local";
    case ExchangeMode::pass_through:
      return "pass_through";
    case ExchangeMode::decode_only:
      return "decode_only";
    case ExchangeMode::disaggregated:
      return "disaggregated";
  }
  return "unknown";
}

std::string_view name_of(ExchangeOutcome outcome) {
  switch (outcome) {
    case ExchangeOutcome::answered:
      return "answered";
    case ExchangeOutcome::client_gone:
      return "client_gone";
    case ExchangeOutcome::broken:
      return "broken";
    case ExchangeOutcome::cancelled:
      return "cancelled";
  }
  return "unknown";
}

void ExchangeRecord::clear() {
  request_id.clear();
  method = {};
  path.clear();
  mode = ExchangeMode::refused;
  outcome = ExchangeOutcome::answered;
  reason.clear();
  prefill_endpoint.clear();
  prefill_error.clear();
  status = 0;
  error_code.clear();
  is_probe = false;
  prefill = decode = auxiliary = {};
  bytes_in = bytes_out = 0;
  started = Clock::now();
}

LegRecord& ExchangeRecord::leg(std::uint32_t role) {
  if (role == HANDOFF_ROLE_PREFILL) return prefill;
  return role == HANDOFF_ROLE_DECODE ? decode : auxiliary;
}

void record_leg(LegRecord& record, const UpstreamLeg& leg, LegFailure failure) {
  record.used = true;
  record.status = leg.times().head == Clock::time_point{} ? 0 : leg.head().status;
  record.failure = failure;
  record.times = leg.times();
}

void finish_exchange(const ExchangeRecord& record, Counters& counters) {
  counters.add("exchanges");
  counters.add(name_of(record.outcome));
  counters.add(name_of(record.mode));
  if (record.mode == ExchangeMode::decode_only && !record.reason.empty())
    counters.add("decode_only", record.reason);
  if (!record.error_code.empty()) counters.add("error", record.error_code);

  const auto level = level_of(record);
  if (!telemetry::log_enabled(level)) return;
  telemetry::LogLine line(level, "exchange");
  line.field("request_id", record.request_id).field("method", record.method).field("path", record.path);
  line.field("mode", name_of(record.mode));
  if (!record.reason.empty()) line.field("reason", record.reason);
  if (!record.prefill_endpoint.empty()) line.field("prefill", record.prefill_endpoint);
  line.field("status", record.status).field("outcome", name_of(record.outcome));
  if (!record.error_code.empty()) line.field("error", record.error_code);
  if (!record.prefill_error.empty()) line.field("prefill_error", record.prefill_error);
  log_leg(line, "auxiliary_status", "auxiliary_failure", "auxiliary_sent_ms", "auxiliary_head_ms",
          "auxiliary_ms", record.auxiliary);
  log_leg(line, "prefill_status", "prefill_failure", "prefill_sent_ms", "prefill_head_ms", "prefill_ms",
          record.prefill);
  if (record.prefill_retries != 0) line.field("prefill_retries", record.prefill_retries);
  log_leg(line, "decode_status", "decode_failure", "decode_sent_ms", "decode_head_ms", "decode_ms",
          record.decode);
  line.field("bytes_in", record.bytes_in).field("bytes_out", record.bytes_out);
  line.field("total_ms", to_ms(Clock::now() - record.started));
}

}  // namespace handoff::sidecar
