#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace handoff::epp::test {

// A new seed each run, printed by the test that uses it when it fails; HANDOFF_TEST_SEED runs that one again.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("HANDOFF_TEST_SEED");
  if (given != nullptr) return std::strtoull(given, nullptr, 10);
  return std::random_device{}();
}

}  // namespace handoff::epp::test
