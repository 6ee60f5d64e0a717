#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/sglang/engine_info.hpp"
#include "backends/sglang/logprob_merge.hpp"
#include "backends/sglang/pairing.hpp"
#include "backends/sglang/reply_check.hpp"
#include "backends/sglang/request_shape.hpp"
#include "backends/sglang/server_sent_events.hpp"
#include "shared/backend_abi/backend_sdk.hpp"

namespace handoff::sglang {

struct Settings {
  std::uint32_t bootstrap_port = 0;  ///< 0: asked for
};

/// What the exchanges of one backend instance share; outlives them.
struct Shared {
  const Settings& settings;
  const sdk::Host& host;
  EngineMemory& memory;
};

/// Begins a request: either settles it at once (no prefill endpoint, or an error) and returns null, or starts
/// legs.
std::unique_ptr<sdk::Exchange> begin_exchange(const Shared& shared, const handoff_request& request,
                                              sdk::Turn& turn);

/// One request as prefill beside decode. Lives from begin() to end(); used on one thread.
///
///   asking --both engines known--> paired --prefill good, decode's first event good--> answering --> settled
///     ^                               |
///     +-------------------------------+ lost in transit, or the engine says it may be tried again; once
///
/// Prefill's answer decides whether decode's may be seen. Whichever fails first ends the other, by its
/// connection and by /abort_request: left alone, an engine waits five minutes for its peer.
class SglangExchange final : public sdk::Exchange {
 public:
  SglangExchange(const Shared& shared, const handoff_request& request, const RequestShape& shape);

  /// Starts the first legs.
  void start(sdk::Turn& turn);
  void on_event(const handoff_event& event, sdk::Turn& turn) override;

 private:
  enum class Phase : std::uint8_t { asking, paired, answering, settled };
  /// One of the two requests of a pair.
  struct Side {
    std::uint32_t leg = 0;
    bool running = false;     ///< the sidecar has it
    bool unfinished = false;  ///< the engine may still work on it, or wait for its peer
  };

  // Asking.
  void ask(std::uint32_t target, sdk::Turn& turn);
  void on_info(const handoff_event& event, sdk::Turn& turn);
  void on_connected(const handoff_event& event, sdk::Turn& turn);
  void on_checked(const handoff_event& event, sdk::Turn& turn);
  void ask_again(sdk::Turn& turn);
  void forget_engines();
  void forget_failed(const handoff_event& failure);
  void confirm_engines(std::uint64_t now_ms);
  bool accept_prefill(EngineInfo info, std::uint64_t now_ms, sdk::Turn& turn);
  bool accept_decode(EngineInfo info, std::uint64_t now_ms, sdk::Turn& turn);
  void fail_asking(std::string_view code, std::string_view message, std::uint32_t leg, sdk::Turn& turn);

  // The pair.
  bool choose_prefill_rank(sdk::Turn& turn);
  void start_pair(sdk::Turn& turn);
  void start_prefill(sdk::Turn& turn);
  void start_decode(sdk::Turn& turn);
  void note(Side& side, const handoff_event& event);
  void on_prefill(const handoff_event& event, sdk::Turn& turn);
  void on_decode(const handoff_event& event, sdk::Turn& turn);
  void on_decode_head(const handoff_event& event, sdk::Turn& turn);
  void on_decode_piece(const handoff_event& event, sdk::Turn& turn);
  void on_decode_done(const handoff_event& event, sdk::Turn& turn);
  void on_leg_failed(const handoff_event& event, sdk::Turn& turn);
  void on_rejected(const handoff_event& event, sdk::Turn& turn);
  void on_reported_failure(const ReportedFailure& failure, sdk::Turn& turn);
  void advance(sdk::Turn& turn);

  // Answers with prefill's log-probabilities.
  void keep_event(std::string_view event, sdk::Turn& turn);
  void begin_merged(sdk::Turn& turn);
  void finish_merged(sdk::Turn& turn);
  void answer_merged(sdk::Turn& turn);
  void pass_on(std::string_view bytes, bool last, sdk::Turn& turn);

  // Ends.
  bool may_start_over() const { return !tried_again_; }
  void start_over(sdk::Turn& turn);
  void begin_anew(sdk::Turn& turn);
  void give_up(Side& side, std::uint32_t target, sdk::Turn& turn);
  void abort(std::uint32_t target, sdk::Turn& turn);
  void settle(sdk::Turn& turn);
  void fail(std::uint32_t status, std::string_view code, std::string_view message, std::uint32_t leg,
            sdk::Turn& turn);
  void on_end(const handoff_event& event, sdk::Turn& turn);

  const Shared shared_;
  const handoff_request request_;
  const sdk::Object body_;
  const RequestShape shape_;
  const std::string prefill_endpoint_;  ///< key of the memory
  Phase phase_ = Phase::asking;
  std::uint32_t last_leg_ = 0;
  bool tried_again_ = false;
  bool engine_changed_ = false;  ///< another pair was begun because of that

  std::uint32_t prefill_info_leg_ = 0;
  std::uint32_t decode_info_leg_ = 0;
  EngineInfo prefill_info_;
  EngineInfo decode_info_;
  bool prefill_from_memory_ = false;  ///< what is known of it was not asked for by this exchange
  bool decode_from_memory_ = false;

  std::optional<std::string_view> prefill_rank_;  ///< digits; a view of the request
  Pairing pairing_;
  Side prefill_;
  Side decode_;
  bool prefill_good_ = false;
  bool decode_good_ = false;  ///< its first event is no failure
  bool decode_done_ = false;
  bool decode_is_stream_ = false;
  std::uint32_t decode_status_ = 0;
  std::string decode_reason_;         ///< x-sglang-pd-reason of its head
  bool decode_is_retryable_ = false;  ///< x-sglang-retryable of its head
  EventReader events_;
  std::uint64_t looked_at_ = 0;  ///< bytes of decode's reply that came while the answer was not decided

  bool wants_stream_ = false;  ///< merging: the client asked for a stream
  PromptLogprobs logprobs_;
  std::string content_type_;
  std::vector<std::string> waiting_;  ///< merging: decode's events that came before prefill was good
  std::string decode_reply_;  ///< decode's reply if it is no stream: as much as is looked at; merging: all
};

}  // namespace handoff::sglang
