#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "epp/ext_proc/ext_proc_stream.hpp"

namespace google::protobuf::io {
class CodedInputStream;
}

namespace handoff::epp {

// Reads the gateway's messages (ProcessingRequest) straight from their bytes: headers go into one block,
// bodies into the string in which they stay, all else is looked up where it lies. Unlike a generated class it
// takes any bytes as text; what is a header of no known name is never looked at.
//
// Owner: a queue; its thread only. Its memory is used again for each message.
class MessageReader {
 public:
  // Hands one message to the protocol. `is_first`: the stream's first message. `input` has the message as its
  // limit. False, and nothing was handed over, when it is no message of this protocol.
  bool deliver(google::protobuf::io::CodedInputStream& input, bool is_first, ExtProcStream& stream);

 private:
  using Input = google::protobuf::io::CodedInputStream;

  bool read(Input& input);
  bool read_message(Input& input, std::string& scratch, std::string_view& message);
  void add_metadata(std::string_view part);
  bool read_headers(std::string_view message, HeaderBlock& headers);
  bool read_body(Input& input);
  bool read_metadata();
  bool read_subset(std::string_view value);

  // Of the message at hand.
  int part_ = 0;  // field number of what it brings; 0: nothing known
  HeaderBlock request_headers_;
  HeaderBlock response_headers_;  // keeps its memory
  std::string body_;
  bool end_of_stream_ = false;
  StreamOpening opening_;
  std::string_view metadata_;
  std::optional<std::vector<std::string>> subset_;
  std::string_view served_;

  std::string scratch_;  // for what does not lie in one piece
  std::string metadata_scratch_;
};

}  // namespace handoff::epp
