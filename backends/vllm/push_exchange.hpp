#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backends/vllm/pair_exchange.hpp"
#include "backends/vllm/prefill_memory.hpp"
#include "backends/vllm/vllm_exchange.hpp"

namespace handoff::vllm {

/// NIXL push with both engines at once: decode registers its blocks with a prefill engine whose address an
/// earlier reply named. The engines pair the legs by `X-Request-Id`, which is ours. When prefill's reply
/// names another address, decode is asked again, with that.
class PushExchange final : public PairExchange {
 public:
  PushExchange(const Settings& settings, const sdk::Host& host, PrefillMemory& memory,
               const handoff_request& request, const Endpoint& endpoint, const PushAddress& address);

  void start(sdk::Turn& turn);
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 private:
  void forget() override;
  void begin_anew(sdk::Turn& turn) override;
  void on_prefill_reply(const handoff_event& event, sdk::Turn& turn) override;
  void on_other_event(const handoff_event&, sdk::Turn&) override {}

  PrefillMemory& memory_;
  const PushAddress address_;
  const std::string request_id_;
  std::unique_ptr<VllmExchange> rest_;  ///< runs what one leg after the other does better
};

}  // namespace handoff::vllm
