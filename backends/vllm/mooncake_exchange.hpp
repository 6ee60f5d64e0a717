#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/vllm/pair_exchange.hpp"
#include "backends/vllm/prefill_memory.hpp"

namespace handoff::vllm {

/// Both engines at once, paired by a `transfer_id` of ours. The prefill engine's id comes from its bootstrap
/// server.
class MooncakeExchange final : public PairExchange {
 public:
  MooncakeExchange(const Settings& settings, const sdk::Host& host, PrefillMemory& memory,
                   const handoff_request& request, const Endpoint& endpoint);

  void start(std::uint64_t now_ms, sdk::Turn& turn);

 private:
  void forget() override { memory_.bootstrap.forget(prefill_); }
  void begin_anew(sdk::Turn& turn) override;
  void on_prefill_reply(const handoff_event& event, sdk::Turn& turn) override;
  void on_new_connection(sdk::Turn& turn) override;
  void on_other_event(const handoff_event& event, sdk::Turn& turn) override;
  void on_checked(const handoff_event& event, sdk::Turn& turn);
  void fail_unconfirmed(sdk::Turn& turn);
  void ask(sdk::Turn& turn);
  void start_with(const std::vector<PrefillRank>& ranks, bool from_memory, sdk::Turn& turn);
  const PrefillRank& choose(const std::vector<PrefillRank>& ranks) const;

  PrefillMemory& memory_;
  const std::string prefill_;  ///< key of the memory
  std::uint32_t bootstrap_leg_ = 0;
  PrefillRank rank_;          ///< what decode was told
  bool unconfirmed_ = false;  ///< asked again, no rank was named
};

}  // namespace handoff::vllm
