// One place of a gateway for ext_proc streams: runs one after another, and checks every answer.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "ext_proc_script.hpp"

namespace bench {

// What the places of one run share and report to.
class ExtProcClientHost {
 public:
  virtual ~ExtProcClientHost() = default;
  // The last piece of the request came back.
  virtual void on_decision(std::uint64_t started_ns) = 0;
  // A response chunk came back.
  virtual void on_echo(std::uint64_t due_ns) = 0;
  // The stream is over, with or without everything that was owed.
  virtual void on_stream_end(class ExtProcStreamClient& client, bool complete) = 0;
};

struct ExtProcClientPlan {
  bool with_response = false;  // goes on with response headers and chunks
  bool paced = false;          // chunks are sent by send_chunk(), else each when the one before came back
  std::uint64_t chunks = 0;    // per stream; 0: no end
  bool expects_prefill = false;
  bool distinct = false;
};

// Thread: the queue's. Address is the gRPC tag's, so it does not move.
class ExtProcStreamClient {
 public:
  using Stub = grpc::GenericStub;
  enum class Operation : std::uint8_t { kRead, kWrite, kWritesDone, kFinish };
  struct Tag {
    ExtProcStreamClient* client;
    Operation operation;
  };

  ExtProcStreamClient(Stub& stub, grpc::CompletionQueue& queue, ExtProcClientHost& host,
                      const ExtProcClientPlan& plan, const ExtProcScript& script, std::uint64_t number);
  ExtProcStreamClient(const ExtProcStreamClient&) = delete;
  ExtProcStreamClient& operator=(const ExtProcStreamClient&) = delete;

  void begin();
  // Paced: one more chunk that was due then. Sent when the one before it is out.
  void send_chunk(std::uint64_t due_ns);
  void on_event(Operation operation, bool ok);
  bool is_open() const { return open_; }
  std::string_view fault() const { return fault_; }

 private:
  void send_next();
  void write(const grpc::ByteBuffer& message);
  bool is_chunk_answer() const;
  void on_chunk_back();
  void on_answer();
  void on_request_answer(const WireResponse& answer);
  void close();
  bool check(bool holds, std::string_view what);

  Stub& stub_;
  grpc::CompletionQueue& queue_;
  ExtProcClientHost& host_;
  const ExtProcClientPlan plan_;
  ExtProcScript script_;
  std::uint64_t number_;

  Tag read_{this, Operation::kRead};
  Tag write_{this, Operation::kWrite};
  Tag writes_done_{this, Operation::kWritesDone};
  Tag finish_{this, Operation::kFinish};
  std::optional<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc_;
  grpc::ByteBuffer incoming_;
  WireResponse answer_;  // where the bytes alone do not say that all is well
  grpc::Status status_;

  bool open_ = false;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
  bool read_ended_ = false;
  std::size_t pieces_sent_ = 0;
  bool headers_answered_ = false;
  std::size_t bytes_back_ = 0;
  bool request_done_ = false;
  bool response_headers_sent_ = false;
  bool response_headers_back_ = false;
  std::uint64_t chunks_sent_ = 0;
  std::uint64_t chunks_back_ = 0;
  std::uint64_t waiting_chunks_ = 0;  // due, not sent
  std::uint64_t started_ns_ = 0;
  // Due times of chunks on their way; they come back in order.
  static constexpr std::size_t kMostOnTheWay = 4096;
  std::vector<std::uint64_t> due_ns_;
  std::string_view fault_;
};

}  // namespace bench
