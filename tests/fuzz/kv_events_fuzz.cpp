// Arbitrary bytes as KV-event batches, through codec, applier and index. First byte: which path the rest
// takes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "epp/kv_index/block_index.hpp"
#include "epp/kv_index/kv_event_applier.hpp"
#include "epp/kv_index/kv_event_codec.hpp"
#include "epp/kv_index/kv_event_stream.hpp"

namespace {

using namespace handoff::epp;

constexpr WorkerRank kRank{1, 0};

void check(bool holds) {
  if (!holds) std::abort();
}

// Whatever decodes must be consistent in itself.
void check_batch(std::span<const std::byte> payload) {
  KvEventBatch batch;
  if (!decode_kv_events(payload, batch)) return;
  check(batch.events.size() <= kMaxKvEvents && batch.hashes.size() <= kMaxKvHashes);
  for (const KvEvent& event : batch.events) {
    check(event.hashes.begin + std::size_t{event.hashes.count} <= batch.hashes.size());
    check(event.tokens.begin + std::size_t{event.tokens.count} <= batch.tokens.size());
    check(event.extra_keys.begin + std::size_t{event.extra_keys.count} <= batch.extra_keys.size());
  }
}

// Several batches one after the other, lengths in the input; small limits, so that they are reached.
void feed_index(std::span<const std::byte> input) {
  BlockIndexOptions options;
  options.max_blocks = 64;
  options.max_engine_hashes = 96;
  options.max_holder_set_bytes = 512;
  options.shards = 1;
  BlockIndex index(options);
  index.add_rank(kRank);
  index.add_rank({1, 1});
  KvApplierOptions applier_options;
  applier_options.rank = kRank;
  applier_options.rank_count = 2;
  applier_options.block_size = 2;
  KvEventApplier applier(index, applier_options);
  KvStreamOptions stream_options;
  stream_options.can_replay = true;
  stream_options.max_held_batches = 4;
  KvEventStream stream(stream_options, applier);
  SteadyTime now{};
  while (input.size() >= 3) {
    const auto control = std::to_integer<unsigned>(input[0]);
    const auto sequence = std::to_integer<std::uint64_t>(input[1]);
    const std::size_t size = std::min<std::size_t>(std::to_integer<std::size_t>(input[2]), input.size() - 3);
    const auto payload = input.subspan(3, size);
    input = input.subspan(3 + size);
    now += std::chrono::seconds(1);
    switch (control % 8) {
      case 0:
        stream.on_connected(now);
        break;
      case 1:
        stream.on_replay_end(now);
        break;
      case 2:
        stream.on_tick(now);
        break;
      case 3:
        (void)stream.take_replay_request();
        stream.on_replayed(sequence, payload, now);
        break;
      default:
        stream.on_batch(sequence, payload, now);
    }
    const BlockIndexStats stats = index.stats();
    check(stats.blocks <= options.max_blocks && stats.engine_hashes <= options.max_engine_hashes);
    check(stats.holder_set_bytes <= options.max_holder_set_bytes);
  }
  applier.clear();
  for (int i = 0; i < 3; ++i) index.maintain(now);
  check(index.stats().blocks == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  if (data[0] % 2 == 0) {
    check_batch(input);
  } else {
    feed_index(input);
  }
  return 0;
}
