#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "backends/json_text/first_event.hpp"
#include "backends/vllm/connector.hpp"
#include "backends/vllm/endpoint.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::vllm {

/// One request to both engines at once, with decode's reply held until prefill has done its part. Lives from
/// begin() to end(); used on one thread. What the engines are told, and what prefill's reply means, is the
/// connector's.
///
///   (asking) --> pairing --prefill done--> relaying --> settled
///       ^           |                          ^
///       +-- once ---+                          | decode has spoken, if what it was told came from memory
///
/// Decode finds out when prefill's engine is not the remembered one. So with something from memory a reply is
/// relayed when decode has begun it and not earlier, and a refusal starts over with what is asked anew.
class PairExchange : public sdk::Exchange {
 public:
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 protected:
  PairExchange(const Settings& settings, const sdk::Host& host, const handoff_request& request,
               const Endpoint& endpoint);

  /// What one leg is told.
  struct Told {
    std::string_view params;
    std::span<const handoff_header> headers;
  };

  /// Starts both legs. `from_memory`: what decode is told may be out of date.
  void start_pair(const Told& prefill, const Told& decode, bool from_memory, sdk::Turn& turn);
  /// What is known of the prefill engine may be wrong.
  virtual void forget() = 0;
  /// Begins from what is asked anew.
  virtual void begin_anew(sdk::Turn& turn) = 0;
  /// Prefill answered 2xx with an object: calls prefill_is_done(), or settles in another way.
  virtual void on_prefill_reply(const handoff_event& event, sdk::Turn& turn) = 0;
  /// Prefill's connection had to be made anew: another engine may listen there than the one of the memory.
  virtual void on_new_connection(sdk::Turn&) {}
  /// Events of other legs than the pair's.
  virtual void on_other_event(const handoff_event& event, sdk::Turn& turn) = 0;

  void prefill_is_done(sdk::Turn& turn);
  /// Closes decode's leg: its answer is of no use. Nothing of it has been shown.
  void give_up_decode(sdk::Turn& turn);
  void fail_invalid(std::string_view message, std::uint32_t leg, sdk::Turn& turn);
  void run_decode_only(std::string_view reason, sdk::Turn& turn);

  enum class Phase : std::uint8_t { other, pairing, relaying, settled };

  const Settings& settings_;
  const sdk::Host& host_;
  const handoff_request request_;
  const sdk::Object body_;
  const Endpoint& endpoint_;
  Phase phase_ = Phase::other;
  std::uint32_t next_leg_ = 1;
  std::uint32_t prefill_leg_ = 0;
  std::uint32_t decode_leg_ = 0;
  bool prefill_done_ = false;
  bool decode_spoke_ = false;
  bool decode_done_ = false;

 private:
  void on_prefill(const handoff_event& event, sdk::Turn& turn);
  void on_decode(const handoff_event& event, sdk::Turn& turn);
  void on_decode_failed(const handoff_event& event, sdk::Turn& turn);
  void on_decode_spoke(sdk::Turn& turn);
  void on_decode_refused(bool by_status_4xx, sdk::Turn& turn);
  void start_over(sdk::Turn& turn);
  void relay_decode(sdk::Turn& turn);

  json_text::FirstEvent first_event_;  ///< of decode's reply
  bool from_memory_ = false;
  bool tried_again_ = false;
};

}  // namespace handoff::vllm
