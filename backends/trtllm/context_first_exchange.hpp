#pragma once

#include <cstdint>
#include <string_view>

#include "backends/trtllm/context_reply.hpp"
#include "backends/trtllm/endpoint.hpp"
#include "backends/trtllm/settings.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {

/// One request as context, then generation. Lives from begin() to end(); used on one thread.
///
///   context --handoff--> generation --> settled
///      |  \--ended there: its reply is the answer--^
///      +--- lost in transit, once, with a new id ---
///
/// An id is good for one request to each engine, so no leg is ever sent twice.
class ContextFirstExchange final : public sdk::Exchange {
 public:
  ContextFirstExchange(const Settings& settings, const sdk::Host& host, const handoff_request& request,
                       Api api);

  void start_context(sdk::Turn& turn);
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 private:
  enum class Phase : std::uint8_t { context, generation, settled };

  void on_context_done(const handoff_event& event, sdk::Turn& turn);
  void on_context_failed(const handoff_event& event, sdk::Turn& turn);
  void on_missing_handoff(sdk::Turn& turn);
  void refuse_handoff(std::string_view defect, sdk::Turn& turn);
  void start_generation(const ContextReply& reply, sdk::Turn& turn);
  void on_generation_failed(const handoff_event& event, sdk::Turn& turn);
  void on_end(const handoff_event& event);
  void start_over(sdk::Turn& turn);
  void note_unreleased();
  void note_refused();

  const Settings& settings_;
  const sdk::Host& host_;
  const sdk::Object body_;
  const Api api_;
  Phase phase_ = Phase::context;
  std::uint32_t leg_ = 0;  ///< the running leg
  bool tried_again_ = false;
};

}  // namespace handoff::trtllm
