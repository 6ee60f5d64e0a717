#include "backends/sglang/leg_headers.hpp"

namespace handoff::sglang {
namespace {

constexpr std::string_view kEngineRankHeader = "x-data-parallel-rank";

std::optional<std::string_view> rank_in(const handoff_request& request, std::string_view name) {
  const auto value = sdk::find_header(request.headers, request.header_count, name);
  if (!value || value->empty() || value->size() > 5) return std::nullopt;
  if (value->find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string_view> chosen_prefill_rank(const handoff_request& request) {
  return rank_in(request, "x-dynamo-prefill-dp-rank");
}

std::optional<std::string_view> chosen_decode_rank(const handoff_request& request) {
  return rank_in(request, "x-dynamo-dp-rank");
}

LegHeaders::LegHeaders() {
  for (const std::string_view name : {"x-override-rid", "x-override-bootstrap-host",
                                      "x-override-bootstrap-port", "x-override-bootstrap-room"}) {
    add(name, "");
  }
}

LegHeaders LegHeaders::for_prefill(const handoff_request& request) {
  LegHeaders headers;
  // The client's own rank is about the engine it means to talk to; prefill may have fewer ranks and refuse
  // it.
  headers.add(kEngineRankHeader, chosen_prefill_rank(request).value_or(""));
  return headers;
}

LegHeaders LegHeaders::for_decode(const handoff_request& request) {
  LegHeaders headers;
  if (const auto rank = chosen_decode_rank(request)) headers.add(kEngineRankHeader, *rank);
  return headers;
}

CallHeaders::CallHeaders(const handoff_request& request, bool has_body) {
  if (has_body) fields_.at(count_++) = sdk::header("content-type", "application/json");
  if (const auto key = sdk::find_header(request.headers, request.header_count, "authorization"))
    fields_.at(count_++) = sdk::header("authorization", *key);
}

}  // namespace handoff::sglang
