// Ids that differ at every start, and the seeded dice of the fault rules. Two generators: --seed must not fix
// the ids.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace handoff::mock {

class Random {
 public:
  explicit Random(std::uint64_t seed) : dice_(seed), ids_(std::random_device{}()) {}

  std::string hex(int digits);
  std::string uuid();
  // Uniform in [0, 1).
  double roll() { return std::uniform_real_distribution<double>(0.0, 1.0)(dice_); }

 private:
  std::mt19937_64 dice_;
  std::mt19937_64 ids_;
};

}  // namespace handoff::mock
