// X3 of kv_index_bench: the hashes of a request against XXH3 of each block. The base that calls the library
// is in kv_index_feed_bench.cpp, because the library is inlined into the whole of this file.
#include <benchmark/benchmark.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "epp/kv_index/block_hash.hpp"

namespace handoff::epp::bench {
namespace {

std::vector<std::uint32_t> tokens() {
  std::vector<std::uint32_t> made(60'000);
  std::iota(made.begin(), made.end(), 1U);
  return made;
}

void hash_chained(benchmark::State& state) {
  const auto text = tokens();
  RequestHashes hashes;
  for (auto _ : state) {
    hash_request(text, static_cast<std::uint32_t>(state.range(0)), {}, hashes);
    benchmark::DoNotOptimize(hashes.sequence.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size() * 4));
}
BENCHMARK(hash_chained)->ArgName("tokens")->Arg(16)->Arg(64)->Arg(128)->Unit(benchmark::kMicrosecond);

// XXH3 of every block on its own, results added up: what any block hashing has to do at least.
void hash_one_shot(benchmark::State& state) {
  const auto text = tokens();
  const auto block = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i + block <= text.size(); i += block) {
      sum += XXH3_64bits_withSeed(text.data() + i, block * 4, 1337);
    }
    benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size() * 4));
}
BENCHMARK(hash_one_shot)->ArgName("tokens")->Arg(16)->Arg(64)->Arg(128)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace handoff::epp::bench
