#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"
#include "epp/ext_proc/ext_proc_stream.hpp"
#include "epp/planning/request_life.hpp"
#include "epp/server/body_deadlines.hpp"
#include "epp/server/message_reader.hpp"
#include "epp/server/message_writer.hpp"

namespace handoff::epp {

// It deletes itself.  NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor)
class ExtProcCall;

// Messages come and go as bytes, so that they are read and written in memory that all calls of a queue use.
using RawExternalProcessor = envoy::service::ext_proc::v3::ExternalProcessor::WithRawMethod_Process<
    envoy::service::ext_proc::v3::ExternalProcessor::Service>;

// What calls of one queue share; that queue's thread only, but for the counters.
struct CallHost {
  RawExternalProcessor* service = nullptr;
  grpc::ServerCompletionQueue* queue = nullptr;
  const ExtProcLimits* limits = nullptr;
  const LifeServices* life = nullptr;
  MessageReader* reader = nullptr;
  MessageWriter* writer = nullptr;
  BodyDeadlines* deadlines = nullptr;
  std::atomic<std::size_t>* open_streams = nullptr;
  std::atomic<std::size_t>* live_calls = nullptr;  // those that wait for a stream, too
  std::size_t listening = 0;
};

// One ext_proc stream on a completion queue: moves messages between gRPC and the protocol, at most one read
// and one write at a time.
//
// Owns itself: made by listen(), gone when its last operation came back. Thread: its queue's.
class ExtProcCall final : private BodyWaiter {
 public:
  enum class Operation : std::uint8_t { kAccept, kRead, kWrite, kFinish, kWake };
  struct Tag {
    ExtProcCall* call = nullptr;
    Operation operation = Operation::kAccept;
  };

  // Waits for streams, as many as may begin before the queue's thread looks again.
  static void listen(CallHost& host);
  // An operation came back from the queue.
  static void on_event(void* tag, bool ok);

 private:
  explicit ExtProcCall(CallHost& host);
  ~ExtProcCall();

  static void listen_once(CallHost& host);

  void on_accepted(bool ok);
  bool deliver_incoming();
  void on_read(bool ok);
  void on_written(bool ok);
  void on_body_timeout() override;
  void advance();
  void send(const Answer& answer);
  void finish();
  void watch_body();
  void forget_body();
  void leave_if_done();
  void wake();
  void* tag(Operation operation) { return &tags_[static_cast<std::size_t>(operation)]; }

  CallHost& host_;
  std::array<Tag, 5> tags_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> rpc_;
  grpc::ByteBuffer incoming_;
  RequestLife life_;
  ExtProcStream stream_;
  std::optional<grpc::Alarm> wake_alarm_;  // when a plan came in from another thread

  std::atomic<std::uint32_t> wakes_{0};  // on their way
  bool first_message_ = true;
  bool reading_ = false;
  bool writing_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  bool peer_closed_ = false;  // no further messages will come
  bool broken_ = false;       // a write failed: nothing arrives any more
  bool malformed_ = false;    // what came is no message of this protocol
};

}  // namespace handoff::epp
