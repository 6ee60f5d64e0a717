#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "epp/ext_proc/ext_proc_stream.hpp"
#include "epp/planning/output_meter.hpp"
#include "epp/planning/prefill_rates.hpp"
#include "epp/planning/request_planner.hpp"

namespace handoff::epp {

class Housekeeping;

// What all requests of a program share.
struct LifeServices {
  const PlanningConfig* config = nullptr;
  RequestPlanner* planner = nullptr;
  WorkerDirectory* directory = nullptr;
  PrefillRates* rates = nullptr;
  Housekeeping* housekeeping = nullptr;  // null: no estimates
  std::function<SteadyTime()> clock;
};

// One request from its arrival to the end of its answer: has it planned, and turns what happens on its stream
// into what is booked. Prefill is over at the first byte of the answer, all of it at its end; a stream that
// ends before that, for whatever reason, ends everything at once.
//
// Owner: the gRPC call. Its thread, except that `wake` comes from anywhere.
class RequestLife final : public RequestEvents {
 public:
  // `wake` asks for on_wake() on the stream's thread; it is not called after this object is gone.
  RequestLife(const LifeServices& services, std::function<void()> wake);
  ~RequestLife() override;

  void attach(ExtProcStream& stream) { stream_ = &stream; }
  // A plan came in from another thread.
  void on_wake();
  // Nothing more will come: undoes or ends whatever is booked. Idempotent.
  void on_stream_ended();

  void on_request(ReceivedRequest request) override;
  void on_abandoned() override;
  void on_response_started(unsigned status, bool event_stream) override;
  void on_first_response_byte() override;
  void on_response_bytes(std::string_view bytes) override;
  void on_served_endpoint(std::string_view endpoint) override;
  void on_response_ended() override;

 private:
  class Mailbox;

  void take(PlanResult result);
  void plan_prefill_release();
  void finish(std::string_view how);

  const LifeServices& services_;
  ExtProcStream* stream_ = nullptr;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<PlanningRun> run_;
  std::shared_ptr<Plan> plan_;  // published
  std::string destination_;
  std::string request_id_;
  RequestKind kind_ = RequestKind::kAny;
  bool streams_ = false;
  bool ended_ = false;
  // What came before its plan, as may be on a stream that only observes.
  bool first_byte_came_ = false;
  bool response_ended_ = false;
  std::string served_;
  unsigned status_ = 0;
  SteadyTime received_at_;
  SteadyTime published_at_;
  std::uint64_t reported_output_ = 0;
  OutputMeter meter_;
};

}  // namespace handoff::epp
