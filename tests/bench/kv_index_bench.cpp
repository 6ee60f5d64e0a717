// The index, its hashing and its event feed against their floors and peers, in one run. Prints the times and
// then the ratios.
//   kv_index_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/bench/kv_index_memory.hpp"

namespace handoff::epp::bench {
namespace {

class RatioReporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (!run.error_occurred) {
        // Manual times are CPU times already; real ones are meant to be real.
        const bool manual = run.benchmark_name().find("manual_time") != std::string::npos ||
                            run.benchmark_name().find("real_time") != std::string::npos;
        times_[run.benchmark_name()] = manual ? run.GetAdjustedRealTime() : run.GetAdjustedCPUTime();
      }
    }
    for (const Run& run : runs) {
      if (const auto p99 = run.counters.find("p99_us"); p99 != run.counters.end())
        (run.benchmark_name().find("raw") != std::string::npos ? raw_p99_ms_ : event_p99_ms_) =
            p99->second / 1000;
    }
    ConsoleReporter::ReportRuns(runs);
  }

  void print_ratios(const IndexMemory& memory) const {
    std::printf("\n%-58s %10s   %s\n", "ratio", "measured", "goal (must / stretch)");
    ratio("E5 string map / index, cold", "pick_string_map/cold:1/manual_time",
          "pick_index/cold:1/manual_time", "60 / 90");
    ratio("E5 string map / index, warm", "pick_string_map/cold:0/manual_time",
          "pick_index/cold:0/manual_time", "- / 400");
    ratio("X1 find, 64-block prompts / plain table", "find_index/blocks:64", "find_plain_table/blocks:64",
          "2.0 / 1.3");
    ratio("X1 find, single blocks / plain table", "find_index/blocks:1", "find_plain_table/blocks:1", "-");
    const std::string each = "/iterations:3/manual_time";
    const std::string plain = "insert_plain_table" + each;
    const std::string events = "insert_events/presized:1" + each;
    ratio("X1 insert, events (two tables) / plain table", events, plain, "3.0 / 2.0");
    difference("X1 the same, less the chain of hashes", events, "chain_events" + each, plain);
    ratio("X1 the same, and the hashes of the tokens", "insert_events_with_tokens/presized:1" + each, plain,
          "-");
    ratio("X1 insert, events / two plain tables", events, "insert_two_plain_tables" + each, "-");
    ratio("X1 insert, predictions (one table) / plain table", "insert_predictions/presized:1" + each, plain,
          "3.0 / 2.0");
    ratio("X1 insert, events, growing / plain table", "insert_events/presized:0" + each, plain, "-");
    ratio("X1 insert, predictions, growing / plain table", "insert_predictions/presized:0" + each, plain,
          "-");
    value("X2 bytes per block, one holder", memory.per_block, "48 / 36");
    value("X2 the same with expected_blocks", memory.per_expected_block, "48 / 36");
    value("X2 bytes per further holder, whole prompts", memory.per_shared_holder, "8 / 1");
    value("X2 bytes per further holder, each block its own", memory.per_random_holder, "8 / 1");
    for (const char* size : {"16", "64", "128"}) {
      const std::string chained = "hash_chained/tokens:" + std::string(size);
      ratio((std::string("X3 chained / one-shot, library call, tokens: ") + size).c_str(), chained,
            "hash_library/tokens:" + std::string(size), "1.3 / 1.1");
      ratio((std::string("X3 chained / one-shot, inlined, tokens: ") + size).c_str(), chained,
            "hash_one_shot/tokens:" + std::string(size), "-");
    }
    ratio("K1 feed / raw messages per second, 256 B", "ingest_raw/1/200000/iterations:3/manual_time",
          "ingest_feed/1/200000/iterations:3/manual_time", "0.5 / 0.75");
    ratio("K1 feed / raw messages per second, 4 KB", "ingest_raw/60/40000/iterations:3/manual_time",
          "ingest_feed/60/40000/iterations:3/manual_time", "0.5 / 0.75");
    value("K2 event to visible at 10,000/s, p99 in ms", event_p99_ms_, "2 / 0.5");
    value("K2 the same of a bare ZMQ message", raw_p99_ms_, "-");
  }

 private:
  void ratio(const char* what, const std::string& top, const std::string& bottom, const char* goal) const {
    const auto a = times_.find(top);
    const auto b = times_.find(bottom);
    if (a != times_.end() && b != times_.end()) value(what, a->second / b->second, goal);
  }
  // (top - less) / bottom
  void difference(const char* what, const std::string& top, const std::string& less,
                  const std::string& bottom) const {
    const auto a = times_.find(top);
    const auto b = times_.find(less);
    const auto c = times_.find(bottom);
    if (a == times_.end() || b == times_.end() || c == times_.end()) return;
    value(what, (a->second - b->second) / c->second, "-");
  }
  static void value(const char* what, double number, const char* goal) {
    if (number != 0) std::printf("%-58s %10.2f   %s\n", what, number, goal);
  }

  std::map<std::string, double> times_;
  double event_p99_ms_ = 0;
  double raw_p99_ms_ = 0;
};

}  // namespace
}  // namespace handoff::epp::bench

int main(int argc, char** argv) {
  const bool is_filtered = argc > 1;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  // By far the longest part; left out where something else is asked for.
  const auto memory =
      is_filtered ? handoff::epp::bench::IndexMemory{} : handoff::epp::bench::measure_index_memory();
  handoff::epp::bench::RatioReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  reporter.print_ratios(memory);
}
