// Heads of requests to engines.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sidecar/http1/message_head.hpp"
#include "sidecar/upstream_pool.hpp"

namespace handoff::sidecar {

/// How the body of a request to an engine is framed.
struct LegFraming {
  std::optional<std::uint64_t> content_length;
  bool chunked = false;
};

/// A field that replaces the client's of its name; an empty value removes them.
struct HeaderOverride {
  std::string_view name;
  std::string_view value;
};

struct LegHead {
  std::string_view method;
  std::string_view target;
  const EngineAddress* engine = nullptr;
  const http1::RequestHead* client = nullptr;  // null: none of the client's fields
  std::span<const HeaderOverride> overrides;
  bool keep_accept_encoding = true;
  std::string_view request_id_if_absent;  // empty: none is added
};

/// The head, empty line included: the client's end-to-end fields without those that are for us or for this
/// hop only.
std::string write_leg_head(const LegHead& leg, const LegFraming& framing);

}  // namespace handoff::sidecar
