#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/json_text/first_event.hpp"
#include "backends/vllm/bootstrap_memory.hpp"
#include "backends/vllm/connector.hpp"
#include "backends/vllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// One request to both engines at once, paired by a `transfer_id` of ours. Decode's reply is held until
/// prefill is done. Lives from begin() to end(); used on one thread.
///
///   asking (bootstrap /query, if not remembered) --> pairing --prefill done--> relaying --> settled
///      ^                                               |
///      +-- lost in transit, or an old engine id, once -+
class MooncakeExchange final : public sdk::Exchange {
 public:
  MooncakeExchange(const Settings& settings, const sdk::Host& host, BootstrapMemory& memory,
                   const handoff_request& request, const Endpoint& endpoint);

  void start(std::uint64_t now_ms, sdk::Turn& turn);
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 private:
  enum class Phase : std::uint8_t { asking, pairing, relaying, settled };

  void ask_bootstrap(sdk::Turn& turn);
  void on_bootstrap(const handoff_event& event, sdk::Turn& turn);
  void start_pair(const std::vector<PrefillRank>& ranks, sdk::Turn& turn);
  const PrefillRank& choose(const std::vector<PrefillRank>& ranks) const;
  void on_prefill(const handoff_event& event, sdk::Turn& turn);
  void on_decode(const handoff_event& event, sdk::Turn& turn);
  void on_decode_refused(sdk::Turn& turn);
  void start_over(sdk::Turn& turn);
  void give_up_decode(sdk::Turn& turn);
  void relay_decode(sdk::Turn& turn);

  const Settings& settings_;
  const sdk::Host& host_;
  BootstrapMemory& memory_;
  const handoff_request request_;
  const sdk::Object body_;
  const Endpoint& endpoint_;
  const std::string prefill_;  ///< key of the memory
  Phase phase_ = Phase::asking;
  std::uint32_t next_leg_ = 1;
  std::uint32_t bootstrap_leg_ = 0;
  std::uint32_t prefill_leg_ = 0;
  std::uint32_t decode_leg_ = 0;
  json_text::FirstEvent first_event_;  ///< of decode's reply
  bool from_memory_ = false;
  bool decode_done_ = false;
  bool tried_again_ = false;
};

}  // namespace handoff::vllm
