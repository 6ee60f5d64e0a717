// What the proxy does with each header field, by name, and with the fields that a Connection header names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace handoff::sidecar {

/// Every field of a head, or of trailers, has exactly one class, so that a head is sorted in one pass.
enum class HeaderClass : std::uint8_t {
  /// Forwarded; means nothing to the proxy.
  end_to_end,

  // Forwarded, and read by the proxy.
  accept_encoding,
  content_encoding,
  content_type,
  retry_after,
  x_request_id,

  // Not forwarded as they are: the sender of the next message writes its own where it needs them.
  connection,
  content_length,
  expect,
  host,
  transfer_encoding,
  upgrade,
  /// The other fields that RFC 9110 ends at each hop, proxy credentials included.
  hop_by_hop,

  // Never forwarded: for the sidecar alone, or between gateway and EPP. An engine would log them, or trust
  // them.
  x_prefiller_host_port,
  orchestration,
};

/// Ignores the case of letters and never allocates.
HeaderClass classify_header(std::string_view name);

/// Whether fields of the class are copied to the other side, in requests, responses and trailers alike.
constexpr bool is_forwarded(HeaderClass header_class) {
  return header_class <= HeaderClass::x_request_id;
}

/// What the Connection fields of one message say. Holds views into the field values, which must outlive it.
///
/// A proxy removes the fields that Connection names. That is also a known trick: a client names, say,
/// Content-Type or X-Forwarded-For, and the server behind the proxy sees a request without what the gateway
/// set or the proxy checked. RFC 9110 (7.6.1) forbids senders to name fields that are meant for all
/// recipients, so such names are ignored: those that describe the body, carry credentials or cookies, or tell
/// who asked (see kProtectedFields). Whatever else is named is removed.
class ConnectionOptions {
 public:
  /// More names than this in one message serve no purpose but to make removal expensive.
  static constexpr std::size_t kMaxNamedFields = 16;

  /// Takes one field value. False when too many different fields are named; the message is then refused as
  /// bad_request.
  [[nodiscard]] bool add(std::string_view field_value);

  bool close() const { return close_; }
  bool keep_alive() const { return keep_alive_; }
  bool upgrade() const { return upgrade_; }

  /// Whether this forwarded field is to be removed because it is named.
  bool removes(std::string_view name) const { return named_count_ != 0 && is_named(name); }

 private:
  bool is_named(std::string_view name) const;

  std::array<std::string_view, kMaxNamedFields> named_;
  std::size_t named_count_ = 0;
  bool close_ = false;
  bool keep_alive_ = false;
  bool upgrade_ = false;
};

}  // namespace handoff::sidecar
