#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backends/vllm/connector.hpp"
#include "backends/vllm/endpoint.hpp"
#include "backends/vllm/vllm_exchange.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// Whether the client lets decode give up when too little of the prompt is cached.
bool asks_for_threshold(const sdk::Object& body, const Endpoint& endpoint);

/// One request to engines with a shared store, whose client sent `cache_hit_threshold`: decode is asked
/// first, and if it says that too little was cached, prefill and decode run. Lives from begin() to end().
///
///   trying --enough--> settled (its reply is the answer)
///      \--`cache_threshold`--> prefill, then decode (VllmExchange)
class DecodeFirstExchange final : public sdk::Exchange {
 public:
  DecodeFirstExchange(const Settings& settings, const sdk::Host& host, PrefillMemory& memory,
                      const handoff_request& request, const Endpoint& endpoint);

  void start(sdk::Turn& turn);
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 private:
  void on_done(const handoff_event& event, sdk::Turn& turn);
  void on_piece(std::string_view bytes, sdk::Turn& turn);
  void take_reply(sdk::Turn& turn);
  void run_prefill(bool leg_runs, sdk::Turn& turn);

  const Settings& settings_;
  const sdk::Host& host_;
  PrefillMemory& memory_;
  const handoff_request request_;
  const sdk::Object body_;
  const Endpoint& endpoint_;
  bool settled_ = false;
  bool streamed_ = false;
  std::string begin_;  ///< of a stream, until two events are there
  std::unique_ptr<VllmExchange> pair_;
};

}  // namespace handoff::vllm
