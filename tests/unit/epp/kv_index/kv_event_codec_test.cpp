#include "epp/kv_index/kv_event_codec.hpp"
#include "epp/kv_index/kv_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>
#include <string>

#include "epp/kv_index/msgpack_cursor.hpp"
#include "tests/unit/epp/kv_index/kv_event_writer.hpp"
#include "tests/unit/epp/kv_index/test_seed.hpp"

namespace handoff::epp {
namespace {

using testing::ElementsAre;
using namespace test;

Payload bytes(std::initializer_list<int> values) {
  Payload payload;
  for (const int value : values) payload.push_back(static_cast<std::byte>(value));
  return payload;
}

// Decodes and keeps the payload, because the texts of a batch are views into it.
bool decode(Payload payload, KvEventBatch& batch) {
  static Payload kept;
  kept = std::move(payload);
  return decode_kv_events(kept, batch);
}

std::vector<std::uint64_t> hashes(const KvEventBatch& batch, std::size_t event) {
  const auto span = batch.hashes_of(batch.events.at(event));
  return {span.begin(), span.end()};
}
std::vector<std::uint32_t> tokens(const KvEventBatch& batch, std::size_t event) {
  const auto span = batch.tokens_of(batch.events.at(event));
  return {span.begin(), span.end()};
}

// Every field that a generation has must come out, whatever its spelling.
TEST(KvEventCodec, ReadsEveryGenerationOfEvents) {
  for (const Generation generation : kGenerations) {
    SCOPED_TRACE(static_cast<int>(generation));
    Stored event;
    event.hashes = {0xF000000000000001u, 2};
    event.parent = 0x8000000000000000u;
    event.tokens = {1, 2, 3, 4, 5, 6, 7, 70'000};
    event.medium = "CPU";
    event.lora_name = "adapter-a";
    event.extra_keys = {{"adapter-a"}, nullptr};
    event.group = 3;
    event.kind = "full_attention";
    event.window = 128;
    event.locality = "REMOTE";
    event.cache_salt = "tenant-a";
    KvEventBatch batch;
    ASSERT_TRUE(decode(test::batch({stored_event(generation, event), removed_event(generation, {9}, "CPU", 3),
                                    cleared_event(generation)},
                                   2),
                       batch));
    EXPECT_EQ(batch.timestamp, 1'700'000'000.25);
    EXPECT_EQ(batch.rank, 2u);
    ASSERT_EQ(batch.events.size(), 3u);
    const KvEvent& stored = batch.events[0];
    EXPECT_EQ(stored.kind, KvEventKind::stored);
    EXPECT_THAT(hashes(batch, 0), ElementsAre(0xF000000000000001u, 2u));
    EXPECT_EQ(stored.parent, 0x8000000000000000u);
    EXPECT_THAT(tokens(batch, 0), ElementsAre(1, 2, 3, 4, 5, 6, 7, 70'000));
    EXPECT_EQ(stored.block_size, 4u);
    EXPECT_EQ(stored.medium, generation >= Generation::vllm_2025_09 ? "CPU" : "");
    const bool is_vllm = !is_sglang(generation);
    EXPECT_EQ(stored.lora_name, is_vllm && generation >= Generation::vllm_2025_12 ? "adapter-a" : "");
    EXPECT_EQ(stored.group.has_value(),
              is_map(generation) || (is_vllm && generation >= Generation::vllm_2026_04));
    EXPECT_EQ(stored.attention_kind, is_map(generation) || (is_vllm && generation >= Generation::vllm_2026_05)
                                         ? "full_attention"
                                         : "");
    EXPECT_EQ(stored.locality, is_map(generation) ? "REMOTE" : "");
    EXPECT_EQ(stored.cache_salt,
              is_map(generation) || generation == Generation::sglang_array ? "tenant-a" : "");
    EXPECT_EQ(batch.events[1].kind, KvEventKind::removed);
    EXPECT_THAT(hashes(batch, 1), ElementsAre(9u));
    EXPECT_EQ(batch.events[1].medium, generation >= Generation::vllm_2025_09 ? "CPU" : "");
    EXPECT_EQ(batch.events[2].kind, KvEventKind::cleared);
  }
}

// A batch as bytes, spelled by hand from the MessagePack specification, so that not even the test's writer is
// trusted.
TEST(KvEventCodec, ReadsABatchSpelledByHand) {
  const Payload payload = bytes({
      0x93,                                                                   // [ts, events, rank]
      0xCB, 0x3F, 0xF8, 0,    0,    0,    0,    0,    0,                      // 1.5
      0x91,                                                                   // one event
      0x97,                                                                   // array of 7
      0xAB, 'B',  'l',  'o',  'c',  'k',  'S',  't',  'o',  'r',  'e',  'd',  // its type
      0x92, 0xCF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFE, 0xD3, 0xFF,
      0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFD,
      0xC0,                          // no parent
      0x92, 0x05, 0xCD, 0x01, 0x00,  // tokens 5 and 256
      0x01,                          // block size 1
      0xC0,                          // lora_id
      0xA3, 'G',  'P',  'U',         // medium
      0x01                           // rank 1
  });
  KvEventBatch batch;
  ASSERT_TRUE(decode_kv_events(payload, batch));
  EXPECT_EQ(batch.timestamp, 1.5);
  EXPECT_EQ(batch.rank, 1u);
  EXPECT_THAT(hashes(batch, 0), ElementsAre(0xFFFFFFFFFFFFFFFEu, 0xFFFFFFFFFFFFFFFDu));
  EXPECT_EQ(batch.events[0].parent, std::nullopt);
  EXPECT_THAT(tokens(batch, 0), ElementsAre(5, 256));
  EXPECT_EQ(batch.events[0].medium, "GPU");
}

TEST(KvEventCodec, ReadsBatchesOfAllShapes) {
  KvEventBatch batch;
  const Json event = cleared_event(Generation::vllm_2026_06);
  EXPECT_TRUE(decode(pack(Json::array({1.0, Json::array({event})})), batch));  // before 2025-06-03: no rank
  EXPECT_EQ(batch.rank, std::nullopt);
  EXPECT_TRUE(decode(pack(Json::array({1, Json::array({event}), nullptr})), batch));
  EXPECT_EQ(batch.rank, std::nullopt);
  EXPECT_TRUE(decode(pack(Json::array({1.0, Json::array({event}), -1})), batch));
  EXPECT_EQ(batch.rank, std::nullopt);
  EXPECT_TRUE(decode(pack(Json::array({1.0, Json::array({event}), 5, "later", {1, 2}})), batch));
  EXPECT_EQ(batch.rank, 5u);
  EXPECT_TRUE(decode(
      pack({{"ts", 2.5}, {"events", Json::array({event})}, {"data_parallel_rank", 3}, {"x", 1}}), batch));
  EXPECT_EQ(batch.rank, 3u);
  EXPECT_EQ(batch.timestamp, 2.5);
  EXPECT_EQ(batch.events.size(), 1u);
}

TEST(KvEventCodec, ReadsBigramTokens) {
  Stored event;
  event.hashes = {1};
  Json json = stored_event(Generation::sglang_map, event);
  json["token_ids"] = {{1, 2}, {2, 3}, {3, 4}, {4, 5}};
  KvEventBatch batch;
  ASSERT_TRUE(decode(test::batch({json}), batch));
  EXPECT_TRUE(batch.events[0].tokens_are_pairs);
  EXPECT_THAT(tokens(batch, 0), ElementsAre(1, 2, 3, 4, 5));
  json["token_ids"] = {{1, 2}, {2, 3, 4}};
  EXPECT_FALSE(decode(test::batch({json}), batch));
}

// The offloading connector's stores: no tokens, block size 0.
TEST(KvEventCodec, ReadsPlaceholders) {
  Stored event;
  event.hashes = {1, 2};
  event.block_size = 0;
  event.medium = "cpu";
  KvEventBatch batch;
  ASSERT_TRUE(decode(test::batch({stored_event(Generation::vllm_2026_06, event)}), batch));
  EXPECT_EQ(batch.events[0].block_size, 0u);
  EXPECT_TRUE(tokens(batch, 0).empty());
  EXPECT_EQ(batch.events[0].medium, "cpu");
}

TEST(KvEventCodec, ReadsExtraKeys) {
  Stored event;
  event.hashes = {1, 2};
  event.tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  event.extra_keys = Json::array(
      {Json::array({"salt", Json::array({"image-1", 17}), 5, Json::binary({1, 2}), ""}), nullptr});
  KvEventBatch batch;
  ASSERT_TRUE(decode(test::batch({stored_event(Generation::vllm_2026_02, event)}), batch));
  const auto keys = batch.extra_keys_of(batch.events[0]);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].text, "salt");
  EXPECT_FALSE(keys[0].is_marked);
  EXPECT_EQ(keys[1].text, "image-1");
  EXPECT_TRUE(keys[1].is_marked);
  EXPECT_EQ(keys[1].block, 0u);

  Json json = stored_event(Generation::vllm_2026_06, event);
  json["block_mm_infos"] = {nullptr, {{"mm_objects", {{{"mm_hash", 42}, {"offsets", {{0, 3}}}}}}}};
  ASSERT_TRUE(decode(test::batch({json}), batch));
  const auto both = batch.extra_keys_of(batch.events[0]);
  ASSERT_EQ(both.size(), 3u);
  const auto& media = both[0].text.empty() ? both[0] : both[2];
  EXPECT_EQ(media.media, 42u);
  EXPECT_EQ(media.block, 1u);
}

// The tail of array events, behind extra_keys: older ones by type, newer ones by place.
TEST(KvEventCodec, ReadsTheTailOfArrayEvents) {
  struct Row {
    const char* why;
    Json tail;
    std::optional<std::uint64_t> group;
    const char* kind;
    const char* locality;
  };
  const Row rows[] = {
      {"nothing", Json::array(), std::nullopt, "", ""},
      {"group only", {2}, 2, "", ""},
      {"no group", {nullptr}, std::nullopt, "", ""},
      {"group, kind, window", {2, "mamba", 128}, 2, "mamba", ""},
      {"kind and window without group", {nullptr, "sliding_window", 128}, std::nullopt, "sliding_window", ""},
      {"group and locality", {1, "REMOTE"}, 1, "", "REMOTE"},
      {"media infos first", {Json::array({nullptr}), 1, "mla_attention"}, 1, "mla_attention", ""},
      {"fixed: all", {1, "full_attention", 64, "LOCAL", "engine"}, 1, "full_attention", "LOCAL"},
      {"fixed: only locality", {nullptr, nullptr, nullptr, "REMOTE"}, std::nullopt, "", "REMOTE"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.why);
    Json stored = Json::array({"BlockStored", {1}, nullptr, {1, 2}, 2, nullptr, "GPU", nullptr, nullptr});
    Json removed = Json::array({"BlockRemoved", {1}, "GPU"});
    for (const Json& element : row.tail) {
      stored.push_back(element);
      removed.push_back(element);
    }
    KvEventBatch batch;
    ASSERT_TRUE(decode(test::batch({stored, removed}), batch));
    for (const KvEvent& event : batch.events) {
      EXPECT_EQ(event.group, row.group);
      EXPECT_EQ(event.attention_kind, row.kind);
      EXPECT_EQ(event.locality, row.locality);
    }
  }
}

// In old arrays the media infos come first in the tail, however long that is.
TEST(KvEventCodec, ReadsMediaInfosInTheTailOfArrayEvents) {
  const Json media = Json::array({nullptr, {{"mm_objects", {{{"mm_hash", 42}, {"offsets", {{0, 3}}}}}}}});
  for (const Json& rest : {Json::array(), Json::array({2}), Json::array({2, "mla_attention", 128})}) {
    SCOPED_TRACE(rest.dump());
    Json stored = Json::array(
        {"BlockStored", {1, 2}, nullptr, {1, 2, 3, 4}, 2, nullptr, "GPU", nullptr, nullptr, media});
    for (const Json& element : rest) stored.push_back(element);
    KvEventBatch batch;
    ASSERT_TRUE(decode(test::batch({stored}), batch));
    const auto keys = batch.extra_keys_of(batch.events[0]);
    ASSERT_EQ(keys.size(), 1u);
    EXPECT_EQ(keys[0].media, 42u);
    EXPECT_EQ(keys[0].block, 1u);
    EXPECT_EQ(batch.events[0].group.has_value(), !rest.empty());
    EXPECT_EQ(batch.events[0].attention_kind, rest.size() == 3 ? "mla_attention" : "");
  }
}

TEST(KvEventCodec, SkipsWhatItDoesNotKnow) {
  KvEventBatch batch;
  Json event = stored_event(Generation::vllm_2026_06, {});
  event["ownership"] = {{"deep", {1, 2, {{"er", nullptr}}}}};
  event["session_id"] = "s";
  ASSERT_TRUE(decode(test::batch({{{"type", "BlockMoved"}, {"block_hashes", "strange"}},
                                  Json::array({"Later", 1, {{"a", 2}}}),
                                  event}),
                     batch));
  EXPECT_EQ(batch.unknown_events, 2u);
  EXPECT_EQ(batch.events.size(), 1u);
}

// Tokens that are no token ids make the store useless, not the batch: its removals still count.
TEST(KvEventCodec, MarksStoresWithStrangeTokens) {
  KvEventBatch batch;
  Json event = stored_event(Generation::vllm_2026_06, {{1}, nullptr, {}, 2});
  for (const Json& strange : {Json(-1), Json(std::uint64_t{1} << 40), Json("text"), Json(nullptr)}) {
    event["token_ids"] = {1, strange};
    ASSERT_TRUE(decode(test::batch({event}), batch));
    EXPECT_TRUE(batch.events[0].tokens_unusable) << strange;
  }
}

TEST(KvEventCodec, RefusesWhatIsNoBatch) {
  const Json good = stored_event(Generation::vllm_2025_04, {{1}, nullptr, {1, 2}, 2});
  Json no_hashes = {{"type", "BlockStored"}, {"token_ids", {1}}};
  Json twice = Json::array({"BlockStored", {1}, nullptr});
  struct Row {
    const char* why;
    Payload payload;
  };
  const Row rows[] = {
      {"nothing", {}},
      {"a number", pack(5)},
      {"too short", pack(Json::array({1.0}))},
      {"time is no number", pack(Json::array({"now", Json::array()}))},
      {"events are no list", pack(Json::array({1.0, 5, 0}))},
      {"an event is a number", batch({Json(7)})},
      {"an event without a type", batch({{{"block_hashes", {1}}}})},
      {"an empty event", batch({Json::array()})},
      {"a map event without hashes", batch({no_hashes})},
      {"an array event that ends early", batch({twice})},
      {"a hash is text", batch({Json::array({"BlockRemoved", {"a"}})})},
      {"a hash is a fraction", batch({Json::array({"BlockRemoved", {1.5}})})},
      {"a hash of no bytes", batch({Json::array({"BlockRemoved", {Json::binary({})}})})},
      {"a negative block size", batch({Json::array({"BlockStored", {1}, nullptr, {1}, -1})})},
      {"hashes given twice",
       bytes({0x92, 0x01, 0x91, 0x83, 0xA4, 't', 'y', 'p', 'e', 0xAC, 'B',  'l',  'o',
              'c',  'k',  'R',  'e',  'm',  'o', 'v', 'e', 'd', 0xAC, 'b',  'l',  'o',
              'c',  'k',  '_',  'h',  'a',  's', 'h', 'e', 's', 0x91, 0x01, 0xAC, 'b',
              'l',  'o',  'c',  'k',  '_',  'h', 'a', 's', 'h', 'e',  's',  0x91, 0x02})},
      {"a length that lies", bytes({0x93, 0x01, 0xDD, 0xFF, 0xFF, 0xFF, 0xFF, 0xC0})},
      {"a reserved byte", bytes({0x92, 0xC1, 0x90})},
  };
  KvEventBatch batch;
  for (const Row& row : rows) {
    EXPECT_FALSE(decode_kv_events(row.payload, batch)) << row.why;
  }
  Payload trailing = test::batch({good});
  ASSERT_TRUE(decode_kv_events(trailing, batch));
  trailing.push_back(std::byte{0});
  EXPECT_FALSE(decode_kv_events(trailing, batch));
}

TEST(KvEventCodec, SurvivesEveryTruncationAndRandomDamage) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("HANDOFF_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  KvEventBatch batch;
  for (const Generation generation : kGenerations) {
    Stored event;
    event.hashes = {1, 2};
    event.tokens = {1, 2, 3, 4, 5, 6, 7, 8};
    event.extra_keys = Json::array({Json::array({"salt", Json::array({"image", 1})}), nullptr});
    const Payload whole = test::batch({stored_event(generation, event), removed_event(generation, {1})});
    for (std::size_t size = 0; size < whole.size(); ++size) {
      // A copy of that size, so that reading past the end is seen by the sanitizer.
      const Payload part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_FALSE(decode_kv_events(part, batch));
    }
    for (int i = 0; i < 2000; ++i) {
      Payload damaged = whole;
      for (int n = 0; n < 3; ++n) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
      decode_kv_events(damaged, batch);
    }
  }
}

TEST(KvEventCodec, BoundsWhatABatchMayHold) {
  KvEventBatch batch;
  // More events than allowed, four bytes each.
  Payload many = bytes({0x92, 0x01, 0xDD, 0x00, 0x02, 0x00, 0x00});
  for (int i = 0; i < 0x20000; ++i) {
    for (const int byte : {0x91, 0xA1, 0x78}) many.push_back(static_cast<std::byte>(byte));
  }
  EXPECT_FALSE(decode_kv_events(many, batch));
  EXPECT_FALSE(decode_kv_events(Payload(kMaxKvPayloadBytes + 1, std::byte{0x90}), batch));
}

TEST(MsgpackCursor, ReadsIntegersOfEveryWidth) {
  const std::int64_t values[] = {0,
                                 127,
                                 128,
                                 255,
                                 256,
                                 65535,
                                 65536,
                                 4294967295,
                                 4294967296,
                                 -1,
                                 -32,
                                 -33,
                                 -128,
                                 -129,
                                 -32768,
                                 -32769,
                                 std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::max()};
  for (const std::int64_t value : values) {
    const Payload payload = pack(value);
    MsgpackCursor in(payload);
    std::uint64_t bits = 0;
    bool negative = false;
    ASSERT_TRUE(in.read_integer(bits, negative)) << value;
    EXPECT_EQ(static_cast<std::int64_t>(bits), value);
    EXPECT_EQ(negative, value < 0);
    EXPECT_TRUE(in.at_end());
  }
}

// Nesting is the classic way to bring a recursive reader down.
TEST(MsgpackCursor, SkipsDeepNestingWithoutRecursion) {
  Payload deep(4'000'000, std::byte{0x91});
  deep.push_back(std::byte{0xC0});
  MsgpackCursor in(deep);
  EXPECT_TRUE(in.skip());
  EXPECT_TRUE(in.at_end());
  deep.pop_back();
  EXPECT_FALSE(MsgpackCursor(deep).skip());
}

TEST(KvMessages, LiveOnesHaveThreeFrames) {
  const Payload topic = bytes({'k', 'v'});
  const Payload sequence = bytes({0, 0, 0, 0, 0, 0, 1, 2});
  const Payload payload = bytes({0x90});
  const std::array<KvFrame, 4> frames = {topic, sequence, payload, payload};
  const auto message = parse_live_message(std::span(frames).first(3));
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->sequence, 258u);
  EXPECT_EQ(message->payload.size(), 1u);
  EXPECT_FALSE(parse_live_message(std::span(frames).first(2)));
  EXPECT_FALSE(parse_live_message(frames));
  const std::array<KvFrame, 3> short_sequence = {topic, topic, payload};
  EXPECT_FALSE(parse_live_message(short_sequence));
}

TEST(KvMessages, ReplayedOnesHaveThreeFramesOrFour) {
  const Payload empty;
  const Payload topic = bytes({'k', 'v'});
  const Payload sequence = bytes({0, 0, 0, 0, 0, 0, 0, 9});
  const Payload minus_one(8, std::byte{0xFF});
  const Payload payload = bytes({0x90});
  const std::array<KvFrame, 4> with_topic = {empty, topic, sequence, payload};
  const std::array<KvFrame, 3> without = {empty, sequence, payload};
  EXPECT_EQ(parse_replayed_message(with_topic)->sequence, 9u);
  EXPECT_EQ(parse_replayed_message(without)->sequence, 9u);
  EXPECT_FALSE(parse_replayed_message(without)->ends_replay);
  const std::array<KvFrame, 4> end_with_topic = {empty, empty, minus_one, empty};
  const std::array<KvFrame, 3> end_without = {empty, minus_one, empty};
  EXPECT_TRUE(parse_replayed_message(end_with_topic)->ends_replay);
  EXPECT_TRUE(parse_replayed_message(end_without)->ends_replay);
  const std::array<KvFrame, 2> short_one = {sequence, payload};
  EXPECT_FALSE(parse_replayed_message(short_one));
}

}  // namespace
}  // namespace handoff::epp
