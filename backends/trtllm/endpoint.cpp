#include "backends/trtllm/endpoint.hpp"

namespace handoff::trtllm {

Api api_of(std::string_view path) {
  return path == kChatPath ? Api::chat : Api::completions;
}

}  // namespace handoff::trtllm
