// What a gateway says on an ext_proc stream: the messages of one request and of its answer, built once.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "envoy/service/ext_proc/v3/external_processor.pb.h"

namespace bench {

using WireRequest = envoy::service::ext_proc::v3::ProcessingRequest;
using WireResponse = envoy::service::ext_proc::v3::ProcessingResponse;

// In bytes, so that sending is no work: all places of a run share them.
struct ExtProcScript {
  std::string body;          // of the request
  grpc::ByteBuffer headers;  // 15 of them, and the modes of a full duplex gateway
  std::vector<grpc::ByteBuffer> pieces;
  WireRequest first_piece;  // for make_distinct()
  grpc::ByteBuffer response_headers;
  grpc::ByteBuffer chunk;  // one event of a streamed answer
  std::string chunk_bytes;
  std::string chunk_answer;  // the message that gives it back, as protobuf writes it
};

grpc::ByteBuffer bytes_of(const WireRequest& message);

// `piece_bytes`: how a gateway cuts the body. `streams`: whether the request asks for a stream.
ExtProcScript make_ext_proc_script(std::size_t body_bytes, std::size_t piece_bytes, std::size_t chunk_bytes);

// Makes the prompt another one: a tokenizer's cache does not know it. Same size.
void make_distinct(ExtProcScript& script, std::uint64_t number);

}  // namespace bench
