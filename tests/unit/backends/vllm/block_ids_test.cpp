#include "backends/vllm/block_ids.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace handoff::vllm {
namespace {

using Json = nlohmann::json;

/// The same question to a parsed document.
BlockIds expected_block_ids(const std::string& text) {
  const auto ids = Json::parse(text, nullptr, false);
  if (!ids.is_array()) return BlockIds::invalid;
  if (ids.empty()) return BlockIds::empty;
  const auto is_flat = [](const Json& list) {
    for (const auto& id : list) {
      if (!id.is_number_unsigned()) return false;
    }
    return true;
  };
  if (is_flat(ids)) return BlockIds::flat;
  for (const auto& group : ids) {
    if (!group.is_array() || !is_flat(group)) return BlockIds::invalid;
  }
  return BlockIds::grouped;
}

TEST(ClassifyBlockIds, AreJudgedLikeAParserWould) {
  std::mt19937 random(11);
  constexpr std::string_view kBytes = "[[[]]],,,0123459 \n-.e\"n{}";
  int agreed_valid = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string text = "[";
    const auto size = random() % 12;
    for (std::size_t i = 0; i < size; ++i) text += kBytes[random() % kBytes.size()];
    if (random() % 2 == 0) text += "]";
    const auto expected = expected_block_ids(text);
    ASSERT_EQ(static_cast<int>(classify_block_ids(text)), static_cast<int>(expected)) << text;
    agreed_valid += expected != BlockIds::invalid ? 1 : 0;
  }
  EXPECT_GT(agreed_valid, 500);
}

TEST(ClassifyBlockIds, ReadsNothingPastTheEnd) {
  const std::string text = "[[1, 20],[], [3]]";
  for (std::size_t size = 0; size <= text.size(); ++size) {
    const auto part = std::make_unique<char[]>(size);  // a sanitizer sees one byte too many
    text.copy(part.get(), size);
    classify_block_ids({part.get(), size});
  }
}

}  // namespace
}  // namespace handoff::vllm
