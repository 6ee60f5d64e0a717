#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace handoff::trtllm {

inline constexpr std::string_view kSignatureHeader = "x-trtllm-disagg-auth";

/// The two protected members of a handoff, as JSON texts; empty: absent.
struct ProtectedFields {
  std::string_view encoded_opaque_state = {};
  std::string_view ctx_info_endpoint = {};

  /// An engine asks for a signature only where one of them has a value.
  bool any() const;
};

/// What a generation engine signs too, `{"ctx_info_endpoint":…,"encoded_opaque_state":…}` as Python's
/// json.dumps writes it with sorted keys and without spaces; a list of endpoints counts as its first. Nothing
/// when a value is neither null nor a string (or such a list), which no engine would accept.
std::optional<std::string> canonical_payload(const ProtectedFields& fields);

/// Value of the header: "sha256=" and the HMAC in hexadecimal digits. `key` is not empty.
std::string signature_of(std::string_view key, std::string_view payload);

}  // namespace handoff::trtllm
