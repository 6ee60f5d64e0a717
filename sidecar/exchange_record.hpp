// What is remembered of one exchange, for its log line and the counters. Every outcome passes
// finish_exchange().
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "sidecar/counters.hpp"
#include "sidecar/net.hpp"
#include "sidecar/upstream_leg.hpp"

namespace handoff::sidecar {

enum class ExchangeMode : std::uint8_t { refused, local, pass_through, decode_only, disaggregated };
enum class ExchangeOutcome : std::uint8_t { answered, client_gone, broken, cancelled };

std::string_view name_of(ExchangeMode mode);
std::string_view name_of(ExchangeOutcome outcome);

/// One leg's story, as far as it went.
struct LegRecord {
  bool used = false;
  unsigned status = 0;
  LegFailure failure = LegFailure::none;
  LegTimes times;
};

/// Filled in while an exchange runs; owned by its session. Holds no body, no credential and no query string.
struct ExchangeRecord {
  std::string request_id;
  std::string_view method;
  std::string path;
  ExchangeMode mode = ExchangeMode::refused;
  ExchangeOutcome outcome = ExchangeOutcome::answered;
  std::string reason;  // why this mode, if that is not obvious
  std::string prefill_endpoint;
  unsigned prefill_retries = 0;
  std::string prefill_error;  // one word that a failed prefill engine said about itself
  unsigned status = 0;        // what the client was told; 0: nothing
  std::string error_code;     // of an error that we made
  bool is_probe = false;      // health checks are logged at debug level
  LegRecord prefill, decode, auxiliary;
  std::uint64_t bytes_in = 0, bytes_out = 0;
  Clock::time_point started = Clock::now();

  LegRecord& leg(std::uint32_t role);
  /// Ready for the next exchange; keeps the strings' memory.
  void clear();
};

void record_leg(LegRecord& record, const UpstreamLeg& leg, LegFailure failure);

/// Writes the log line and counts. The one place that every exchange passes.
void finish_exchange(const ExchangeRecord& record, Counters& counters);

}  // namespace handoff::sidecar
