#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "epp/kv_index/block_hash.hpp"
#include "epp/kv_index/block_index.hpp"

// What the measurements of the index put into it.
namespace handoff::epp::bench {

// The thread's own CPU time in seconds: the machine may be shared.
inline double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

inline constexpr std::size_t kBlocks = 4'000'000;
inline constexpr std::size_t kPromptBlocks = 64;
inline constexpr std::size_t kPrompts = kBlocks / kPromptBlocks;

struct Prompt {
  std::vector<std::uint64_t> local, sequence, engine;
};

inline Prompt make_prompt(std::uint64_t id, std::size_t blocks) {
  Prompt prompt;
  std::mt19937_64 random(id);
  for (std::size_t i = 0; i < blocks; ++i) {
    prompt.local.push_back(random());
    prompt.sequence.push_back(i == 0 ? prompt.local[0] : chain_hash(prompt.sequence.back(), prompt.local[i]));
    prompt.engine.push_back(random());
  }
  return prompt;
}

inline void store(BlockIndex& index, WorkerRank rank, const Prompt& prompt, std::size_t blocks) {
  index.apply_stored(
      rank, Tier::device,
      {std::nullopt, std::span(prompt.engine).first(blocks), std::span(prompt.local).first(blocks)});
}

}  // namespace handoff::epp::bench
