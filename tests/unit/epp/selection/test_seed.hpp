#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace handoff::epp::test {

// The seed of a random test: HANDOFF_TEST_SEED to replay a failure, else a new one. Printed either way.
inline std::uint64_t test_seed() {
  std::uint64_t seed = std::random_device()();
  if (const char* wanted = std::getenv("HANDOFF_TEST_SEED")) seed = std::stoull(wanted);
  std::cout << "HANDOFF_TEST_SEED=" << seed << std::endl;
  return seed;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t next() { return engine_(); }
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace handoff::epp::test
