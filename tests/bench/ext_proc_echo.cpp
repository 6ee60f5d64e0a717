// The floor of an Endpoint Picker: the same messages in the same order on one completion queue, without any
// picking. A request is collected and given back with a fixed destination, response messages are given back
// at once.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"

namespace {

using envoy::config::core::v3::HeaderValueOption;
using envoy::service::ext_proc::v3::ExternalProcessor;
using envoy::service::ext_proc::v3::ProcessingRequest;
using envoy::service::ext_proc::v3::ProcessingResponse;

constexpr int kListeningCalls = 16;
constexpr int kMessageLimit = 64 << 20;

struct Host {
  ExternalProcessor::AsyncService service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  std::string destination;
};

// One stream. Owns itself until its last operation came back.
class EchoCall {
 public:
  enum class Operation { kAccept, kRead, kWrite, kFinish };
  struct Tag {
    EchoCall* call;
    Operation operation;
  };

  static void listen(Host& host) {
    auto* call = new EchoCall(host);
    host.service.RequestProcess(&call->context_, &call->rpc_, host.queue.get(), host.queue.get(),
                                &call->accept_);
  }

  void on_event(Operation operation, bool ok) {
    switch (operation) {
      case Operation::kAccept:
        if (!ok) {
          delete this;
          return;
        }
        listen(host_);
        break;
      case Operation::kRead:
        reading_ = false;
        if (ok) {
          take();
        } else {
          peer_closed_ = true;
        }
        break;
      case Operation::kWrite:
        writing_ = false;
        broken_ = broken_ || !ok;
        break;
      case Operation::kFinish:
        finished_ = true;
        break;
    }
    advance();
  }

 private:
  explicit EchoCall(Host& host) : host_(host), rpc_(&context_) {}

  void take() {
    switch (incoming_.request_case()) {
      case ProcessingRequest::kRequestHeaders:
        answer_request_headers();
        if (incoming_.request_headers().end_of_stream()) complete_ = true;
        return;
      case ProcessingRequest::kRequestBody:
        complete_ = incoming_.request_body().end_of_stream();
        echo(*incoming_.mutable_request_body(), *answers_.emplace_back().mutable_request_body());
        return;
      case ProcessingRequest::kRequestTrailers:
        complete_ = true;
        answers_.emplace_back().mutable_request_trailers();
        return;
      case ProcessingRequest::kResponseHeaders:
        answers_.emplace_back().mutable_response_headers()->mutable_response();
        return;
      case ProcessingRequest::kResponseBody:
        echo(*incoming_.mutable_response_body(), *answers_.emplace_back().mutable_response_body());
        return;
      case ProcessingRequest::kResponseTrailers:
        answers_.emplace_back().mutable_response_trailers();
        return;
      case ProcessingRequest::REQUEST_NOT_SET:
        return;
    }
  }

  void answer_request_headers() {
    auto& mutation =
        *answers_.emplace_back().mutable_request_headers()->mutable_response()->mutable_header_mutation();
    auto& option = *mutation.add_set_headers();
    option.set_append_action(HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
    option.mutable_header()->set_key("x-gateway-destination-endpoint");
    option.mutable_header()->set_raw_value(host_.destination);
  }

  static void echo(envoy::service::ext_proc::v3::HttpBody& body,
                   envoy::service::ext_proc::v3::BodyResponse& answer) {
    auto& streamed = *answer.mutable_response()->mutable_body_mutation()->mutable_streamed_response();
    *streamed.mutable_body() = std::move(*body.mutable_body());
    streamed.set_end_of_stream(body.end_of_stream());
  }

  void advance() {
    if (!finishing_ && !writing_ && !broken_ && complete_ && !answers_.empty()) {
      outgoing_.Swap(&answers_.front());
      answers_.pop_front();
      writing_ = true;
      rpc_.Write(outgoing_, &write_);
    }
    if (!finishing_ && !writing_ && (broken_ || peer_closed_)) {
      finishing_ = true;
      rpc_.Finish(grpc::Status::OK, &finish_);
    }
    if (!finishing_ && !reading_ && !peer_closed_ && !broken_) {
      reading_ = true;
      rpc_.Read(&incoming_, &read_);
    }
    if (finished_ && !reading_ && !writing_) delete this;
  }

  Host& host_;
  Tag accept_{this, Operation::kAccept};
  Tag read_{this, Operation::kRead};
  Tag write_{this, Operation::kWrite};
  Tag finish_{this, Operation::kFinish};
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<ProcessingResponse, ProcessingRequest> rpc_;
  ProcessingRequest incoming_;
  ProcessingResponse outgoing_;
  std::deque<ProcessingResponse> answers_;
  bool complete_ = false;  // the whole request is here
  bool reading_ = false;
  bool writing_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  bool peer_closed_ = false;
  bool broken_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv, {"--port", "--destination"});
  Host host;
  host.destination = arguments.text("--destination", "127.0.0.1:9");
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(arguments.number("--port", 0, 0, 65535)),
                           grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&host.service);
  builder.SetMaxReceiveMessageSize(kMessageLimit);
  builder.SetMaxSendMessageSize(-1);
  host.queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::fprintf(stderr, "error: --port: cannot listen there\n");
    return 1;
  }
  for (int i = 0; i < kListeningCalls; ++i) EchoCall::listen(host);
  std::printf("listening port=%d\n", port);
  std::fflush(stdout);
  void* tag = nullptr;
  bool ok = false;
  while (host.queue->Next(&tag, &ok)) {
    const auto* done = static_cast<EchoCall::Tag*>(tag);
    done->call->on_event(done->operation, ok);
  }
}
