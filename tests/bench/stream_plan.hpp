// How the fake engine streams, as the query of a request says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace bench {

struct StreamPlan {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  std::uint64_t events = 0;
  std::uint64_t interval_ms = 20;
  std::size_t bytes = 180;
  std::uint64_t corrupt_at = kNever;  // faults for testing the client
  std::uint64_t drop_at = kNever;
};

// `?events=N&interval_ms=M&bytes=B`, faults `&corrupt=N`, `&drop=N`; what is absent or odd has its default.
StreamPlan parse_stream_plan(std::string_view target);

}  // namespace bench
