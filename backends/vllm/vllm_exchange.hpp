#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backends/vllm/connector.hpp"
#include "backends/vllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

struct PrefillMemory;

/// Begins a request: either settles it at once (decode-only, or an error) and returns null, or starts its
/// first legs.
std::unique_ptr<sdk::Exchange> begin_exchange(const Settings& settings, const sdk::Host& host,
                                              PrefillMemory& memory, const handoff_request& request,
                                              sdk::Turn& turn);

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
  /// `used_legs`: ids up to this one are taken.
  VllmExchange(const Settings& settings, const sdk::Host& host, PrefillMemory& memory,
               const handoff_request& request, const Endpoint& endpoint, std::uint32_t used_legs = 0);

  void start_prefill(sdk::Turn& turn);
  /// Goes on from a good prefill reply to a leg that another exchange started, with this request id.
  void continue_after(const handoff_event& prefill_done, std::string request_id, sdk::Turn& turn);
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 private:
  enum class Phase : std::uint8_t { prefilling, decoding, settled };
  /// Whether a decode request with the handoff we hold may have reached the engine.
  enum class Delivery : std::uint8_t { unsent, unknown, sent };

  bool wants_tokens() const;
  void on_prefill_done(const handoff_event& event, sdk::Turn& turn);
  void refuse_handoff(std::string_view defect, sdk::Turn& turn);
  void learn_address(std::uint64_t now_ms);
  void on_missing_handoff(std::string_view reason, std::string_view cause, sdk::Turn& turn);
  /// `tokens`: the prompt's ids as a JSON list, or empty.
  void start_decode(std::string_view tokens, sdk::Turn& turn);
  void on_decode_failed(const handoff_event& event, sdk::Turn& turn);
  void on_end(const handoff_event& event, sdk::Turn& turn);
  void release(sdk::Turn& turn);

  const Settings& settings_;
  const sdk::Host& host_;
  PrefillMemory& memory_;
  const handoff_request request_;
  const sdk::Object body_;
  const Endpoint& endpoint_;
  Phase phase_ = Phase::prefilling;
  std::uint32_t used_legs_;
  std::uint32_t leg_ = 0;   ///< the running leg
  std::string request_id_;  ///< of our legs, where the engines pair them by it; else empty
  bool tried_again_ = false;
  std::string params_;  ///< the handoff we hold; empty: none
  Delivery delivery_ = Delivery::unsent;
};

}  // namespace handoff::vllm
