#include "backends/trtllm/disagg_id.hpp"

namespace handoff::trtllm {

std::string new_disagg_id(const sdk::Host& host) {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 63) - 1;
  std::uint64_t id = 0;
  do {
    host.random(&id, sizeof(id));
    id &= kMost;
  } while (id < kLeastDisaggId);  // one in two million
  return std::to_string(id);
}

}  // namespace handoff::trtllm
