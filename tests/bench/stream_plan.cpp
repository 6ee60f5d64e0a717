#include "stream_plan.hpp"

#include <algorithm>
#include <charconv>

namespace bench {
namespace {

// Number of `name=` in a query; the fallback where it is absent or odd.
std::uint64_t query_number(std::string_view target, std::string_view name, std::uint64_t fallback) {
  const std::size_t mark = target.find('?');
  if (mark == std::string_view::npos) return fallback;
  std::string_view query = target.substr(mark + 1);
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=') {
      std::uint64_t value = fallback;
      std::from_chars(pair.data() + name.size() + 1, pair.data() + pair.size(), value);
      return value;
    }
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
  }
  return fallback;
}

}  // namespace

StreamPlan parse_stream_plan(std::string_view target) {
  StreamPlan plan;
  plan.events = std::min<std::uint64_t>(query_number(target, "events", 10), 10'000'000);
  plan.interval_ms = std::clamp<std::uint64_t>(query_number(target, "interval_ms", 20), 1, 60'000);
  plan.bytes = static_cast<std::size_t>(std::min<std::uint64_t>(query_number(target, "bytes", 180), 65'536));
  plan.corrupt_at = query_number(target, "corrupt", StreamPlan::kNever);
  plan.drop_at = query_number(target, "drop", StreamPlan::kNever);
  return plan;
}

}  // namespace bench
