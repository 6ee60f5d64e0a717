#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"
#include "epp/ext_proc/ext_proc_stream.hpp"
#include "epp/planning/request_life.hpp"

namespace handoff::epp {

class ExtProcCall;

// What calls of one queue share; that queue's thread only, but for the counter.
struct CallHost {
  envoy::service::ext_proc::v3::ExternalProcessor::AsyncService* service = nullptr;
  grpc::ServerCompletionQueue* queue = nullptr;
  const ExtProcLimits* limits = nullptr;
  const LifeServices* life = nullptr;
  std::uint64_t retry_after_secs = 0;
  std::chrono::milliseconds request_body_timeout{0};
  std::atomic<std::size_t>* open_streams = nullptr;
  std::atomic<std::size_t>* live_calls = nullptr;  // those that wait for a stream, too
};

// One ext_proc stream on a completion queue: moves messages between gRPC and the protocol, at most one read
// and one write at a time.
//
// Owns itself: made by listen(), gone when its last operation came back. Thread: its queue's.
class ExtProcCall {
 public:
  enum class Operation : std::uint8_t { kAccept, kRead, kWrite, kFinish, kWake, kTimeout };
  struct Tag {
    ExtProcCall* call = nullptr;
    Operation operation = Operation::kAccept;
  };

  // Waits for the next stream.
  static void listen(CallHost& host);
  // An operation came back from the queue.
  static void on_event(void* tag, bool ok);

 private:
  explicit ExtProcCall(CallHost& host);
  ~ExtProcCall();

  void on_accepted(bool ok);
  void on_read(bool ok);
  void on_written(bool ok);
  void on_timeout(bool fired);
  void advance();
  void send(Answer answer);
  void finish();
  void watch_body();
  void leave_if_done();
  void wake();
  void* tag(Operation operation) { return &tags_[static_cast<std::size_t>(operation)]; }

  CallHost& host_;
  std::array<Tag, 6> tags_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<envoy::service::ext_proc::v3::ProcessingResponse,
                                envoy::service::ext_proc::v3::ProcessingRequest>
      rpc_;
  envoy::service::ext_proc::v3::ProcessingRequest incoming_;
  envoy::service::ext_proc::v3::ProcessingResponse outgoing_;
  RequestLife life_;
  ExtProcStream stream_;
  grpc::Alarm wake_alarm_;
  grpc::Alarm body_alarm_;

  std::atomic<std::uint32_t> wakes_{0};  // on their way
  bool first_message_ = true;
  bool reading_ = false;
  bool writing_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  bool peer_closed_ = false;  // no further messages will come
  bool broken_ = false;       // a write failed: nothing arrives any more
  bool watching_body_ = false;
};

}  // namespace handoff::epp
