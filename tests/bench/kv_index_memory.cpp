#include "tests/bench/kv_index_memory.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "tests/bench/kv_index_prompts.hpp"

namespace handoff::epp::bench {
namespace {

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

double grown_since(std::size_t before) {
  return static_cast<double>(resident_bytes()) - static_cast<double>(before);
}

// Every prompt once, held by rank 0.
void fill(BlockIndex& index) {
  for (std::uint64_t id = 0; id < kPrompts; ++id)
    store(index, {0, 0}, make_prompt(id, kPromptBlocks), kPromptBlocks);
}

double measure_expected_block() {
  BlockIndexOptions options;
  options.expected_blocks = kBlocks;
  const std::size_t before = resident_bytes();
  BlockIndex index(options);
  index.add_rank({0, 0});
  fill(index);
  return grown_since(before) / kBlocks;
}

void measure_whole_prompts(IndexMemory& memory) {
  std::mt19937_64 random(6);
  BlockIndex index;
  for (std::uint64_t w = 0; w < 8; ++w) index.add_rank({w, 0});
  std::size_t before = resident_bytes();
  fill(index);
  memory.per_block = grown_since(before) / kBlocks;
  // Prompts are cached whole: each further worker holds a random half of them.
  before = resident_bytes();
  std::size_t held = 0;
  for (std::uint64_t w = 1; w < 8; ++w) {
    for (std::uint64_t id = 0; id < kPrompts; ++id) {
      if (random() % 2 == 0) continue;
      store(index, {w, 0}, make_prompt(id, kPromptBlocks), kPromptBlocks);
      held += kPromptBlocks;
    }
  }
  memory.per_shared_holder = std::max(grown_since(before) / static_cast<double>(held), 0.01);
}

// The worst case: no two blocks with the same holders, eight of 96.
double measure_scattered_holders() {
  constexpr std::uint64_t kWorkers = 96;
  constexpr std::size_t kFurther = 7;
  std::mt19937_64 random(7);
  BlockIndex index;
  for (std::uint64_t w = 0; w < kWorkers; ++w) index.add_rank({w, 0});
  std::vector<std::uint64_t> blocks(500'000);
  for (std::uint64_t& block : blocks) block = random();
  const auto hold = [&](std::uint64_t worker, const std::uint64_t& block) {
    index.apply_stored({worker, 0}, Tier::device, {std::nullopt, {&block, 1}, {&block, 1}});
  };
  for (const std::uint64_t& block : blocks) hold(0, block);
  const std::size_t before = resident_bytes();
  for (const std::uint64_t& block : blocks) {
    for (std::size_t i = 0; i < kFurther; ++i) hold(1 + i * 13 + random() % 13, block);
  }
  return grown_since(before) / static_cast<double>(blocks.size() * kFurther);
}

// `measure` fills in some of it, in a copy of this process.
template <typename Measure>
IndexMemory in_child(Measure&& measure) {
  int ends[2];
  IndexMemory memory;
  if (pipe(ends) != 0) return memory;
  const pid_t child = fork();
  if (child == 0) {
    measure(memory);
    const bool written = write(ends[1], &memory, sizeof(memory)) == sizeof(memory);
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  if (read(ends[0], &memory, sizeof(memory)) != sizeof(memory)) memory = IndexMemory{};
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return memory;
}

}  // namespace

IndexMemory measure_index_memory() {
  IndexMemory memory = in_child(measure_whole_prompts);
  memory.per_expected_block =
      in_child([](IndexMemory& m) { m.per_expected_block = measure_expected_block(); }).per_expected_block;
  memory.per_random_holder =
      in_child([](IndexMemory& m) { m.per_random_holder = measure_scattered_holders(); }).per_random_holder;
  return memory;
}

}  // namespace handoff::epp::bench
