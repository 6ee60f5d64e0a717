#include "backends/sglang/leg_headers.hpp"

#include "backends/endpoints/chosen_rank.hpp"

namespace handoff::sglang {
using endpoints::chosen_rank;
using endpoints::kEngineRankHeader;

LegHeaders::LegHeaders() {
  for (const std::string_view name : {"x-override-rid", "x-override-bootstrap-host",
                                      "x-override-bootstrap-port", "x-override-bootstrap-room"}) {
    add(name, "");
  }
}

LegHeaders LegHeaders::for_prefill(std::optional<std::string_view> rank) {
  LegHeaders headers;
  // The client's own rank is about the engine it means to talk to; prefill may have fewer ranks and refuse
  // it.
  headers.add(kEngineRankHeader, rank.value_or(""));
  return headers;
}

LegHeaders LegHeaders::for_decode(const handoff_request& request) {
  LegHeaders headers;
  if (const auto rank = chosen_rank(request, endpoints::kDecodeRankHeader))
    headers.add(kEngineRankHeader, *rank);
  return headers;
}

CallHeaders::CallHeaders(const handoff_request& request, bool has_body) {
  if (has_body) fields_.at(count_++) = sdk::header("content-type", "application/json");
  if (const auto key = sdk::find_header(request.headers, request.header_count, "authorization"))
    fields_.at(count_++) = sdk::header("authorization", *key);
}

}  // namespace handoff::sglang
