// Text on its way through the plugin boundary, without copies.
#pragma once

#include <string_view>

#include "shared/backend_abi/decode_backend.h"

namespace handoff::sidecar {

/// What `bytes` refers to; empty when its size is 0, whatever its pointer is.
inline std::string_view view(handoff_bytes bytes) {
  return bytes.size == 0 ? std::string_view{} : std::string_view{bytes.data, bytes.size};
}

/// Valid for as long as `text` is.
inline handoff_bytes to_abi(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace handoff::sidecar
