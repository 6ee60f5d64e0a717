#pragma once

namespace handoff::epp::bench {

// X2: bytes of resident memory, by what the process grows.
struct IndexMemory {
  double per_block = 0;
  double per_expected_block = 0;  // expected_blocks was given
  double per_shared_holder = 0;
  double per_random_holder = 0;
};

// In processes of their own: memory that was freed before would be used again and not show. Before this
// process has used much, because they are copies of it.
IndexMemory measure_index_memory();

}  // namespace handoff::epp::bench
