#include "epp/planning/output_meter.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

const std::string kStream =
    "data: {\"a\":1}\n\ndata: {\"a\":2}\n\n: ping\n\nevent: x\ndata:{\"a\":3}\n\n"
    "data: {\"usage\":{\"prompt_tokens\": 12,\"completion_tokens\":3,"
    "\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n";

TEST(OutputMeter, CountsEventsHoweverTheyAreCut) {
  for (std::size_t piece = 1; piece <= kStream.size(); ++piece) {
    OutputMeter meter;
    meter.start(true);
    for (std::size_t at = 0; at < kStream.size(); at += piece)
      meter.on_bytes(std::string_view(kStream).substr(at, piece));
    EXPECT_EQ(meter.events(), 4U) << piece;
    EXPECT_EQ(meter.usage().prompt_tokens, 12U);
    EXPECT_EQ(meter.usage().completion_tokens, 3U);
    EXPECT_EQ(meter.usage().cached_tokens, 8U);
  }
}

TEST(OutputMeter, FindsUsageOfAnAnswerThatIsNotAStream) {
  OutputMeter meter;
  meter.start(false);
  meter.on_bytes(std::string(100'000, 'x'));
  meter.on_bytes("\"usage\" : {\"completion_tokens\":7}}");
  EXPECT_EQ(meter.events(), 0U);
  EXPECT_EQ(meter.usage().completion_tokens, 7U);
  EXPECT_EQ(meter.usage().prompt_tokens, std::nullopt);
}

TEST(OutputMeter, LeavesOutMembersOfAWrongType) {
  for (const char* text : {"\"usage\":{\"prompt_tokens\":\"7\"}}", "\"usage\":{\"prompt_tokens\":1.5}}",
                           "\"usage\":{\"prompt_tokens\":null}}", "\"usage\":{\"prompt_tokens\":7",
                           "\"usage\":null}", "\"usage\"", "", "\"usage\":{\"prompt_tokens\":-7}}"}) {
    OutputMeter meter;
    meter.on_bytes(text);
    EXPECT_EQ(meter.usage().prompt_tokens, std::nullopt) << text;
  }
}

TEST(OutputMeter, SkipsReportsThatAreNull) {
  OutputMeter meter;
  meter.on_bytes("{\"usage\":{\"completion_tokens\":3}} {\"usage\":null} ");
  EXPECT_EQ(meter.usage().completion_tokens, 3U);
}

}  // namespace
}  // namespace handoff::epp
