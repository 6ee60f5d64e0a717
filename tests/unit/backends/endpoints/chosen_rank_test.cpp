#include "backends/endpoints/chosen_rank.hpp"

#include <gtest/gtest.h>

#include <array>

namespace handoff::endpoints {
namespace {

std::optional<std::string_view> rank_of(std::string_view value) {
  const std::array headers{sdk::header("X-Dynamo-Prefill-DP-Rank", value),
                           sdk::header("x-dynamo-dp-rank", "9")};
  handoff_request request{};
  request.headers = headers.data();
  request.header_count = headers.size();
  return chosen_rank(request, kPrefillRankHeader);
}

TEST(ChosenRank, IsAShortNumber) {
  for (const std::string_view rank : {"0", "7", "99999"}) EXPECT_EQ(rank_of(rank), rank);
}

TEST(ChosenRank, AnythingElseIsAsGoodAsNone) {
  for (const std::string_view rank : {"", "-1", "1.5", "x", "100000", " 1", "1 ", "0x1"}) {
    EXPECT_EQ(rank_of(rank), std::nullopt) << rank;
  }
  EXPECT_EQ(chosen_rank(handoff_request{}, kPrefillRankHeader), std::nullopt);
}

}  // namespace
}  // namespace handoff::endpoints
