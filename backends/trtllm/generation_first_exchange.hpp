#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backends/json_text/first_event.hpp"
#include "backends/trtllm/context_info.hpp"
#include "backends/trtllm/context_reply.hpp"
#include "backends/trtllm/endpoint.hpp"
#include "backends/trtllm/settings.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::trtllm {

/// One request to both engines: generation is asked first, since the engines would wait for each other in the
/// other order, and its reply is held until context is done. Lives from begin() to end(); used on one thread.
///
///   asking (/server_info, if not remembered) --> pairing --context done--> relaying --> settled
///                                                   |
///                                                   +--- lost in transit, once, with a new id
class GenerationFirstExchange final : public sdk::Exchange {
 public:
  GenerationFirstExchange(const Settings& settings, const sdk::Host& host, ContextInfoMemory& memory,
                          const handoff_request& request);

  void start(std::uint64_t now_ms, sdk::Turn& turn);
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 private:
  enum class Phase : std::uint8_t { asking, pairing, relaying, settled };

  void ask_context(sdk::Turn& turn);
  void on_info(const handoff_event& event, sdk::Turn& turn);
  void on_context_connected(const handoff_event& event, sdk::Turn& turn);
  void on_checked(const handoff_event& event, sdk::Turn& turn);
  void start_generation(const ContextInfo& info, sdk::Turn& turn);
  void start_context(sdk::Turn& turn);
  void on_generation(const handoff_event& event, sdk::Turn& turn);
  void on_context(const handoff_event& event, sdk::Turn& turn);
  void on_context_reply(std::uint32_t status, std::string_view text, std::uint64_t now_ms, sdk::Turn& turn);
  void cancel_context(sdk::Turn& turn);
  void answer_finished(const ContextReply& reply, sdk::Turn& turn);
  void give_generations_answer(sdk::Turn& turn);
  void relay_generation(sdk::Turn& turn);
  void on_failed(const handoff_event& event, sdk::Turn& turn);
  void on_end(const handoff_event& event, sdk::Turn& turn);
  void refuse(sdk::Turn& turn);

  const Settings& settings_;
  const sdk::Host& host_;
  ContextInfoMemory& memory_;
  ContextInfo info_;  ///< what generation was told
  const handoff_request request_;
  const sdk::Object body_;
  const std::string context_endpoint_;  ///< key of the memory
  Phase phase_ = Phase::asking;
  std::uint32_t next_leg_ = 1;
  std::uint32_t info_leg_ = 0;
  std::uint32_t generation_leg_ = 0;
  std::uint32_t context_leg_id_ = 0;  ///< 0: not started yet
  bool from_memory_ = false;          ///< `info_` was not asked for by this exchange
  bool checking_ = false;             ///< the context engine is asked whether it is still the one of `info_`
  std::optional<std::string> unchecked_reply_;  ///< its good answer meanwhile
  std::string disagg_id_;
  json_text::FirstEvent first_event_;  ///< of generation's reply: it may be an error
  bool generation_spoke_ = false;      ///< a byte of its reply's body is there: so are its blocks
  bool generation_done_ = false;
  bool tried_again_ = false;
};

}  // namespace handoff::trtllm
