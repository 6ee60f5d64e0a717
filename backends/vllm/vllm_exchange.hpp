#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backends/vllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

enum class OnMissingHandoff : std::uint8_t { decode_only, error };

struct Settings {
  OnMissingHandoff on_missing_handoff = OnMissingHandoff::decode_only;
};

/// Begins a request: either settles it at once (decode-only, or an error) and returns null, or starts the
/// prefill leg.
std::unique_ptr<sdk::Exchange> begin_exchange(const Settings& settings, const sdk::Host& host,
                                              const handoff_request& request, sdk::Turn& turn);

/// One request as prefill, then decode. Lives from begin() to end(); used on one thread.
///
///   prefilling --valid handoff--> decoding --> settled
///       ^                            |
///       +--- lost in transit, once --+
///
/// A handoff is for one decode request: a second one with the same handoff reads blocks that prefill may have
/// given to another prompt, and answers with that prompt's content.
class VllmExchange final : public sdk::Exchange {
 public:
  VllmExchange(const Settings& settings, const sdk::Host& host, const handoff_request& request,
               const Endpoint& endpoint);

  void start_prefill(sdk::Turn& turn);
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 private:
  enum class Phase : std::uint8_t { prefilling, decoding, settled };
  /// Whether a decode request with the handoff we hold may have reached the engine.
  enum class Delivery : std::uint8_t { unsent, unknown, sent };

  void on_prefill_done(const handoff_event& event, sdk::Turn& turn);
  void on_missing_handoff(std::string_view reason, std::string_view cause, sdk::Turn& turn);
  void start_decode(sdk::Turn& turn);
  void on_decode_failed(const handoff_event& event, sdk::Turn& turn);
  void on_end(const handoff_event& event, sdk::Turn& turn);
  void release(sdk::Turn& turn);

  const Settings& settings_;
  const sdk::Host& host_;
  const handoff_request request_;
  const sdk::Object body_;
  const Endpoint& endpoint_;
  Phase phase_ = Phase::prefilling;
  std::uint32_t leg_ = 0;  ///< the running leg
  bool tried_again_ = false;
  std::string params_;  ///< the handoff we hold; empty: none
  Delivery delivery_ = Delivery::unsent;
};

}  // namespace handoff::vllm
