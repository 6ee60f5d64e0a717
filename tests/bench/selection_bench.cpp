// select_and_reserve end to end: token ids in, booked worker out. 100 workers, prompts of 4,000 tokens in
// blocks of 16, half of each prompt a prefix that some workers hold, about 20 live requests per worker. Every
// loop books one request and frees an older one, so that the load is steady.
//
// The floors in the same run: hashing alone, hashing and index lookup, and a selector as one would write it
// first (hash maps per worker under a mutex). The ratios at the end are what to compare between machines and
// commits.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/selection/index_overlap_source.hpp"
#include "epp/selection/selection_service.hpp"

namespace handoff::epp {
namespace {

constexpr std::uint32_t kBlockSize = 16;
constexpr std::size_t kPromptTokens = 4000;
constexpr std::size_t kPrefixTokens = 2000;
constexpr WorkerId kWorkers = 100;
constexpr std::size_t kPrefixes = 50;
constexpr std::size_t kHoldersPerPrefix = 8;
constexpr std::size_t kPrompts = 512;
constexpr std::size_t kLivePerThread = 1000;

using Tokens = std::vector<std::uint32_t>;

struct Workload {
  std::vector<Tokens> prefixes;
  std::vector<Tokens> prompts;
};

const Workload& workload() {
  static const Workload made = [] {
    std::mt19937 random(7);
    Workload work;
    for (std::size_t i = 0; i < kPrefixes; ++i) {
      Tokens tokens(kPrefixTokens);
      for (auto& token : tokens) token = static_cast<std::uint32_t>(random() % 128000);
      work.prefixes.push_back(std::move(tokens));
    }
    for (std::size_t i = 0; i < kPrompts; ++i) {
      Tokens tokens = work.prefixes[random() % kPrefixes];
      while (tokens.size() < kPromptTokens) {
        tokens.push_back(static_cast<std::uint32_t>(random() % 128000));
      }
      work.prompts.push_back(std::move(tokens));
    }
    return work;
  }();
  return made;
}

// What engines would announce: each prefix on some of the workers.
void fill(BlockIndex& index) {
  std::mt19937 random(11);
  std::uint64_t engine_hash = 1;
  for (const Tokens& prefix : workload().prefixes) {
    RequestHashes hashes;
    hash_request(prefix, kBlockSize, {}, hashes);
    std::vector<std::uint64_t> engine(hashes.local.size());
    for (auto& hash : engine) hash = engine_hash++;
    for (std::size_t i = 0; i < kHoldersPerPrefix; ++i) {
      const WorkerRank rank{1 + random() % kWorkers, 0};
      index.apply_stored(rank, Tier::device, {std::nullopt, engine, hashes.local});
    }
  }
}

struct Stand {
  IndexOverlapSource* source = nullptr;
  std::unique_ptr<SelectionService> service;
};

std::unique_ptr<Stand> make_stand() {
  auto made_stand = std::make_unique<Stand>();
  SelectionEnvironment environment = system_environment();
  environment.overlap_source = [&made = *made_stand](const PartitionKey&, std::uint32_t, bool) {
    BlockIndexOptions options;
    options.max_blocks = std::size_t{1} << 20;
    auto source = std::make_unique<IndexOverlapSource>(options, true, KvSubscriptionsFactory());
    made.source = source.get();
    return source;
  };
  made_stand->service = std::move(*SelectionService::create(SelectorConfig{}, std::move(environment)));
  for (WorkerId id = 1; id <= kWorkers; ++id) {
    WorkerSpec spec;
    spec.worker_id = id;
    spec.endpoint = "10.0.0." + std::to_string(id) + ":8000";
    spec.block_size = kBlockSize;
    spec.kv_events_endpoint = "tcp://10.0.0.1:5557";
    spec.max_num_batched_tokens = 8192;
    if (!made_stand->service->upsert_worker(spec)) std::abort();
  }
  fill(made_stand->source->index());
  return made_stand;
}

std::unique_ptr<Stand> stand;

void set_up(const benchmark::State&) {
  if (stand == nullptr) stand = make_stand();
}

void report_percentiles(benchmark::State& state, std::vector<double>& nanoseconds) {
  std::sort(nanoseconds.begin(), nanoseconds.end());
  const auto at = [&](double share) {
    return nanoseconds[static_cast<std::size_t>(share * static_cast<double>(nanoseconds.size() - 1))];
  };
  using benchmark::Counter;
  state.counters["p50_us"] = Counter(at(0.50) / 1000, Counter::kAvgThreads);
  state.counters["p99_us"] = Counter(at(0.99) / 1000, Counter::kAvgThreads);
  state.counters["p999_us"] = Counter(at(0.999) / 1000, Counter::kAvgThreads);
  state.SetItemsProcessed(state.iterations());
}

double since(SteadyTime start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

void select_and_reserve(benchmark::State& state) {
  SelectionService& service = *stand->service;
  std::deque<std::pair<std::string, Lease>> live;
  std::vector<double> nanoseconds;
  nanoseconds.reserve(1 << 20);
  std::size_t next = static_cast<std::size_t>(state.thread_index()) * 101;
  const std::string prefix = "req-" + std::to_string(state.thread_index()) + "-";
  static std::atomic<std::uint64_t> serial{0};
  const std::uint64_t run = serial++;
  const auto one = [&](bool measured) {
    SelectRequest request;
    request.selection_id = prefix + std::to_string(run) + "-" + std::to_string(next);
    TokenPrompt prompt;
    prompt.token_ids = workload().prompts[next++ % kPrompts];
    request.prompt = std::move(prompt);
    const auto start = std::chrono::steady_clock::now();
    service.select_and_reserve(std::move(request), [&](Result<Selection> result) {
      if (!result) std::abort();
      live.emplace_back(std::move(result->selection_id), std::move(result->lease));
    });
    if (measured && nanoseconds.size() < nanoseconds.capacity()) nanoseconds.push_back(since(start));
    if (live.size() > kLivePerThread) {
      service.prefill_complete({live.front().first});
      service.free_reservation({live.front().first});
      live.pop_front();
    }
  };
  while (live.size() < kLivePerThread) one(false);
  for (auto _ : state) one(true);
  for (const auto& [id, lease] : live) service.free_reservation({id});
  report_percentiles(state, nanoseconds);
}

void hashing(benchmark::State& state) {
  std::size_t next = 0;
  std::vector<double> nanoseconds;
  nanoseconds.reserve(1 << 20);
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(hash_request(workload().prompts[next++ % kPrompts], kBlockSize));
    if (nanoseconds.size() < nanoseconds.capacity()) nanoseconds.push_back(since(start));
  }
  report_percentiles(state, nanoseconds);
}

void hashing_and_lookup(benchmark::State& state) {
  std::size_t next = 0;
  std::vector<RankOverlap> rows;
  std::vector<double> nanoseconds;
  nanoseconds.reserve(1 << 20);
  const SteadyTime now = std::chrono::steady_clock::now();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    const auto hashes = hash_request(workload().prompts[next++ % kPrompts], kBlockSize);
    stand->source->match(hashes, now, rows);
    benchmark::DoNotOptimize(rows.data());
    if (nanoseconds.size() < nanoseconds.capacity()) nanoseconds.push_back(since(start));
  }
  report_percentiles(state, nanoseconds);
}

// The obvious way: per worker a map from block to users, looked up block by block for every candidate, and
// one for what it caches.
class PlainSelector {
 public:
  PlainSelector() {
    std::mt19937 random(11);
    for (const Tokens& prefix : workload().prefixes) {
      const auto hashes = hash_request(prefix, kBlockSize);
      for (std::size_t i = 0; i < kHoldersPerPrefix; ++i) {
        auto& worker = workers_[1 + random() % kWorkers];
        for (const auto hash : hashes) worker.cached.emplace(hash, true);
      }
    }
    for (WorkerId id = 1; id <= kWorkers; ++id) workers_[id];
  }

  void reserve(const std::string& id, const Tokens& tokens) {
    auto hashes = hash_request(tokens, kBlockSize);
    const std::lock_guard lock(mutex_);
    WorkerId best = 0;
    double best_cost = 0;
    std::size_t best_cached = 0;
    for (auto& [worker, state] : workers_) {
      std::size_t cached = 0;
      while (cached < hashes.size() && state.cached.contains(hashes[cached])) ++cached;
      std::size_t active = 0;
      while (active < hashes.size() && state.active.contains(hashes[active])) ++active;
      const double prefill = static_cast<double>(state.prefill + tokens.size()) / kBlockSize;
      const double cost = std::max(0.0, prefill - static_cast<double>(cached)) +
                          static_cast<double>(state.active.size() + hashes.size() - active);
      if (best == 0 || cost < best_cost) {
        best = worker;
        best_cost = cost;
        best_cached = cached;
      }
    }
    Worker& chosen = workers_[best];
    for (const auto hash : hashes) ++chosen.active[hash];
    const std::size_t effective = tokens.size() - best_cached * kBlockSize;
    chosen.prefill += effective;
    bookings_.emplace(id, Booking{best, effective, std::move(hashes)});
  }

  void free(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto booking = bookings_.find(id);
    Worker& worker = workers_[booking->second.worker];
    worker.prefill -= booking->second.prefill;
    for (const auto hash : booking->second.hashes) {
      const auto entry = worker.active.find(hash);
      if (--entry->second == 0) worker.active.erase(entry);
    }
    bookings_.erase(booking);
  }

 private:
  struct Worker {
    std::unordered_map<std::uint64_t, bool> cached;
    std::unordered_map<std::uint64_t, std::uint32_t> active;
    std::size_t prefill = 0;
  };
  struct Booking {
    WorkerId worker;
    std::size_t prefill;
    std::vector<std::uint64_t> hashes;
  };
  std::mutex mutex_;
  std::map<WorkerId, Worker> workers_;
  std::unordered_map<std::string, Booking> bookings_;
};

std::unique_ptr<PlainSelector> plain;

void set_up_plain(const benchmark::State&) {
  if (plain == nullptr) plain = std::make_unique<PlainSelector>();
}

void plain_selector(benchmark::State& state) {
  std::deque<std::string> live;
  std::vector<double> nanoseconds;
  nanoseconds.reserve(1 << 20);
  std::size_t next = static_cast<std::size_t>(state.thread_index()) * 101;
  static std::atomic<std::uint64_t> serial{0};
  const std::string prefix = "req-" + std::to_string(serial++) + "-";
  const auto one = [&] {
    const std::string id = prefix + std::to_string(next);
    const Tokens& tokens = workload().prompts[next++ % kPrompts];
    const auto start = std::chrono::steady_clock::now();
    plain->reserve(id, tokens);
    nanoseconds.push_back(since(start));
    live.push_back(id);
    if (live.size() > kLivePerThread) {
      plain->free(live.front());
      live.pop_front();
    }
  };
  while (live.size() < kLivePerThread) one();
  nanoseconds.clear();
  for (auto _ : state) one();
  for (const auto& id : live) plain->free(id);
  report_percentiles(state, nanoseconds);
}

const int kCores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));

// Keeps what the ratios need beside printing the usual table.
class RatioReporter final : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const auto rate = run.counters.find("items_per_second");
      const auto p50 = run.counters.find("p50_us");
      const auto p99 = run.counters.find("p99_us");
      Row& row = rows_[run.benchmark_name()];
      row.cpu_us = run.GetAdjustedCPUTime() / 1000;
      if (rate != run.counters.end()) row.rate = rate->second;
      if (p50 != run.counters.end()) row.p50 = p50->second;
      if (p99 != run.counters.end()) row.p99 = p99->second;
    }
    ConsoleReporter::ReportRuns(runs);
  }

  void print_ratios() const {
    const Row ours = find("select_and_reserve", 1);
    const Row ours_all = find("select_and_reserve", kCores);
    const Row floor = find("hashing_and_lookup", 1);
    const Row hash = find("hashing", 1);
    const Row obvious = find("plain_selector", 1);
    const Row obvious_all = find("plain_selector", kCores);
    std::printf("\nselect_and_reserve, %zu tokens, %llu workers, %d thread(s):\n", kPromptTokens,
                static_cast<unsigned long long>(kWorkers), kCores);
    std::printf("  all cores: p50 %.1f us, p99 %.1f us, %.0f decisions/s (each with its frees)\n",
                ours_all.p50, ours_all.p99, ours_all.rate);
    std::printf("  p50 / hashing and lookup, alone         %.2f\n", ours.p50 / floor.p50);
    std::printf("  p50 / hashing, alone                    %.2f\n", ours.p50 / hash.p50);
    std::printf("  CPU with frees / hashing and lookup     %.2f  (%.1f us)\n", ours.cpu_us / floor.cpu_us,
                ours.cpu_us);
    std::printf("  p99 / p50, all cores                    %.2f\n", ours_all.p99 / ours_all.p50);
    std::printf("  rate all cores / rate alone             %.2f\n", ours_all.rate / ours.rate);
    std::printf("  plain selector p50 / ours, alone        %.1f\n", obvious.p50 / ours.p50);
    std::printf("  plain selector p99 / ours, all cores    %.1f\n", obvious_all.p99 / ours_all.p99);
    std::printf("  plain selector's CPU / ours, all cores  %.1f\n", obvious_all.cpu_us / ours_all.cpu_us);
  }

 private:
  struct Row {
    double cpu_us = 0;  // per iteration; says something on a busy machine, too
    double rate = 0;
    double p50 = 0;
    double p99 = 0;
  };

  Row find(const std::string& name, int threads) const {
    const auto found = rows_.find(name + "/real_time/threads:" + std::to_string(threads));
    return found == rows_.end() ? Row{} : found->second;
  }

  std::map<std::string, Row> rows_;
};

}  // namespace
}  // namespace handoff::epp

int main(int argc, char** argv) {
  using namespace handoff::epp;
  benchmark::Initialize(&argc, argv);
  for (const int threads : kCores == 1 ? std::vector<int>{1} : std::vector<int>{1, kCores}) {
    benchmark::RegisterBenchmark("hashing", hashing)->Threads(threads)->UseRealTime();
    benchmark::RegisterBenchmark("hashing_and_lookup", hashing_and_lookup)
        ->Setup(set_up)
        ->Threads(threads)
        ->UseRealTime();
    benchmark::RegisterBenchmark("select_and_reserve", select_and_reserve)
        ->Setup(set_up)
        ->Threads(threads)
        ->UseRealTime();
    benchmark::RegisterBenchmark("plain_selector", plain_selector)
        ->Setup(set_up_plain)
        ->Threads(threads)
        ->UseRealTime();
  }
  RatioReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  reporter.print_ratios();
  stand.reset();
  plain.reset();
}
