#include "epp/server/ext_proc_call.hpp"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "shared/telemetry/log.hpp"
#include "shared/telemetry/rate_limited_warning.hpp"

namespace handoff::epp {
namespace {

using telemetry::Level;
using telemetry::LogLine;

constexpr std::chrono::seconds kWarnEvery{30};
// Waiting for a stream each.
constexpr std::size_t kListeningCalls = 32;
constexpr std::size_t kLeastListeningCalls = 16;

void warn_of_failed_stream(const StreamEnd& end) {
  static telemetry::RateLimitedWarning warning{kWarnEvery};
  if (const auto suppressed = warning.try_pass()) {
    LogLine(Level::warn, "stream_refused").field("reason", end.message).field("suppressed", *suppressed);
  }
}

void warn_of_response_mode(BodyMode mode) {
  static telemetry::RateLimitedWarning warning{kWarnEvery};
  if (const auto suppressed = warning.try_pass()) {
    LogLine(Level::warn, "response_body_mode")
        .field("mode", static_cast<unsigned>(mode))
        .field("advice", "set response_body_mode to FULL_DUPLEX_STREAMED")
        .field("suppressed", *suppressed);
  }
}

// One piece of memory of gRPC's, which the answer and the writer's memory are not needed for any more.
grpc::ByteBuffer bytes_of(const MessageWriter::Encoded& message) {
  grpc_slice slice = grpc_slice_malloc(message.size());
  std::uint8_t* to = GRPC_SLICE_START_PTR(slice);
  for (const std::string_view part : {message.head, message.body, message.tail}) {
    if (part.empty()) continue;
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  const grpc::Slice whole(slice, grpc::Slice::STEAL_REF);
  return {&whole, 1};
}

}  // namespace

void ExtProcCall::listen(CallHost& host) {
  while (host.listening < kListeningCalls) listen_once(host);
}

void ExtProcCall::listen_once(CallHost& host) {
  ++host.listening;
  auto* call = new ExtProcCall(host);
  host.service->RequestProcess(&call->context_, &call->rpc_, host.queue, host.queue,
                               call->tag(Operation::kAccept));
}

void ExtProcCall::on_event(void* raw, bool ok) {
  const Tag& tag = *static_cast<Tag*>(raw);
  ExtProcCall& call = *tag.call;
  switch (tag.operation) {
    case Operation::kAccept:
      call.on_accepted(ok);
      return;  // it may be gone
    case Operation::kRead:
      call.on_read(ok);
      break;
    case Operation::kWrite:
      call.on_written(ok);
      break;
    case Operation::kFinish:
      call.finished_ = true;
      break;
    case Operation::kWake:
      call.wakes_.fetch_sub(1);
      call.life_.on_wake();
      break;
  }
  call.advance();
}

ExtProcCall::ExtProcCall(CallHost& host)
    : host_(host), rpc_(&context_), life_(*host.life, [this] { wake(); }), stream_(*host.limits, life_) {
  for (std::size_t i = 0; i < tags_.size(); ++i) tags_[i] = {this, static_cast<Operation>(i)};
  life_.attach(stream_);
  host_.live_calls->fetch_add(1);
}

ExtProcCall::~ExtProcCall() {
  if (host_.live_calls->fetch_sub(1) == 1) host_.live_calls->notify_all();
}

void ExtProcCall::on_accepted(bool ok) {
  --host_.listening;
  if (!ok) {  // the server stops
    delete this;
    return;
  }
  host_.open_streams->fetch_add(1, std::memory_order_relaxed);
  // The others are replaced when a stream ends, which nobody waits for.
  if (host_.listening < kLeastListeningCalls) listen_once(host_);
  advance();
}

void ExtProcCall::on_read(bool ok) {
  reading_ = false;
  if (!ok) {
    peer_closed_ = true;
    life_.on_stream_ended();
    return;
  }
  if (!deliver_incoming()) {
    malformed_ = true;
    peer_closed_ = true;
    life_.on_stream_ended();
    return;
  }
  if (std::exchange(first_message_, false) && stream_.response_mode() != BodyMode::kFullDuplex &&
      !stream_.observes_only()) {
    warn_of_response_mode(stream_.response_mode());
  }
  watch_body();
}

bool ExtProcCall::deliver_incoming() {
  using google::protobuf::io::CodedInputStream;
  grpc::Slice whole;
  if (incoming_.TrySingleSlice(&whole).ok()) {
    CodedInputStream input(whole.begin(), static_cast<int>(whole.size()));
    return host_.reader->deliver(input, first_message_, stream_);
  }
  const auto size = static_cast<int>(incoming_.Length());
  grpc::ProtoBufferReader pieces(&incoming_);
  CodedInputStream input(&pieces);
  input.PushLimit(size);
  return host_.reader->deliver(input, first_message_, stream_);
}

void ExtProcCall::on_written(bool ok) {
  writing_ = false;
  if (ok) return;
  broken_ = true;
  life_.on_stream_ended();
}

void ExtProcCall::watch_body() {
  const bool wants = stream_.receives_request() && !stream_.ended();
  if (!wants) {
    forget_body();
  } else if (!is_waiting()) {
    host_.deadlines->add(*this);
  }
}

void ExtProcCall::forget_body() {
  if (is_waiting()) stop_waiting();
}

void ExtProcCall::on_body_timeout() {
  if (!peer_closed_ && !broken_) stream_.on_request_timeout();
  advance();
}

void ExtProcCall::advance() {
  if (!finishing_ && !writing_ && !broken_) {
    if (const auto answer = stream_.next()) send(*answer);
  }
  const bool all_said = !writing_ && (broken_ || stream_.ended() || peer_closed_);
  if (!finishing_ && all_said) finish();
  if (!finishing_ && !reading_ && !peer_closed_ && !broken_ && stream_.wants_messages()) {
    reading_ = true;
    rpc_.Read(&incoming_, tag(Operation::kRead));
  }
  leave_if_done();
}

void ExtProcCall::send(const Answer& answer) {
  const grpc::ByteBuffer outgoing = bytes_of(host_.writer->encode(answer));
  if (stream_.ended()) {  // that was the last
    finishing_ = true;
    rpc_.WriteAndFinish(outgoing, grpc::WriteOptions(), grpc::Status::OK, tag(Operation::kFinish));
    return;
  }
  writing_ = true;
  // Never with a buffer hint: a first write that carries one may wait for ever, as it ends only when the
  // initial metadata is sent, which the hint holds back (gRPC 1.51).
  rpc_.Write(outgoing, tag(Operation::kWrite));
}

void ExtProcCall::finish() {
  finishing_ = true;
  grpc::Status status = grpc::Status::OK;
  if (malformed_) status = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not a ProcessingRequest");
  if (const auto& end = stream_.ended(); end && end->status != StreamStatus::kOk) {
    warn_of_failed_stream(*end);
    status = grpc::Status(static_cast<grpc::StatusCode>(end->status), end->message);
  }
  rpc_.Finish(status, tag(Operation::kFinish));
}

void ExtProcCall::leave_if_done() {
  if (!finished_ || reading_ || writing_) return;
  // Nothing wakes it after this.
  life_.on_stream_ended();
  forget_body();
  if (wakes_.load() != 0) return;
  host_.open_streams->fetch_sub(1, std::memory_order_relaxed);
  // Before this one goes: the queue lives as long as there is a call.
  if (host_.listening < kListeningCalls) listen_once(host_);
  delete this;
}

// From any thread, once per plan.
void ExtProcCall::wake() {
  wakes_.fetch_add(1);
  wake_alarm_.emplace();
  wake_alarm_->Set(host_.queue, gpr_now(GPR_CLOCK_MONOTONIC), tag(Operation::kWake));
}

}  // namespace handoff::epp
