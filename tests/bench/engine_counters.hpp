// What the fake engine counts, and tells at /stats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bench {

struct EngineCounters {
  std::uint64_t requests = 0;
  std::uint64_t handoffs_given = 0;
  std::uint64_t handoffs_taken = 0;
  std::uint64_t plain_answers = 0;  // of POSTs without any handoff
  std::uint64_t paired = 0;         // requests with an id that both legs have
  std::uint64_t pairing_sum = 0;    // of those ids' hashes: equal in both engines if every id came to both
  std::uint64_t streams = 0;
  std::uint64_t stream_sends = 0;
  std::uint64_t missed_ticks = 0;
  std::uint64_t connections = 0;

  std::string json() const {
    const auto member = [](std::string_view name, std::uint64_t value) {
      return '"' + std::string(name) + "\":" + std::to_string(value);
    };
    return '{' + member("requests", requests) + ',' + member("handoffs_given", handoffs_given) + ',' +
           member("handoffs_taken", handoffs_taken) + ',' + member("plain_answers", plain_answers) + ',' +
           member("paired", paired) + ',' + member("pairing_sum", pairing_sum) + ',' +
           member("streams", streams) + ',' + member("stream_sends", stream_sends) + ',' +
           member("missed_ticks", missed_ticks) + ',' + member("connections", connections) + '}';
  }
};

}  // namespace bench
