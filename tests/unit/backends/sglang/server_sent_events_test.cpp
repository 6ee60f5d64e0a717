#include "backends/sglang/server_sent_events.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace handoff::sglang {
namespace {

std::vector<std::string> cut(std::string_view stream, std::size_t step) {
  EventReader reader(1000);
  std::vector<std::string> out;
  for (std::size_t at = 0; at < stream.size(); at += step) {
    reader.feed(stream.substr(at, step));
    while (const auto event = reader.next()) out.emplace_back(*event);
  }
  out.emplace_back(reader.rest());
  return out;
}

TEST(EventReader, FindsTheSameEventsHoweverTheStreamIsCut) {
  const std::string_view stream =
      "data: 1\n\ndata: \xc3\xa9\r\n\r\nevent: a\ndata: 2\n\n: comment\n\ndata: rest";
  const std::vector<std::string> wanted{"data: 1\n\n", "data: \xc3\xa9\r\n\r\n", "event: a\ndata: 2\n\n",
                                        ": comment\n\n", "data: rest"};
  for (std::size_t step = 1; step <= stream.size(); ++step) EXPECT_EQ(cut(stream, step), wanted) << step;
}

TEST(EventReader, GivesUpOnAnEventWithoutEnd) {
  EventReader reader(10);
  reader.feed("data: 1\n\n");
  EXPECT_TRUE(reader.next());
  reader.feed("data: 1234567890");
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.is_overlong());
  reader.feed("\n\n");
  EXPECT_FALSE(reader.next());
}

TEST(EventData, IsTheValueOfTheOnlyDataField) {
  EXPECT_EQ(event_data("data: {}\n\n"), "{}");
  EXPECT_EQ(event_data("data:{}\r\n\r\n"), "{}");
  EXPECT_EQ(event_data("data:\n\n"), "");
  EXPECT_EQ(event_data("event: a\ndata: {}\n\n"), "{}");
  EXPECT_EQ(event_data(": a\r\ndata: {}\r\nid: 1\r\n\r\n"), "{}");
  EXPECT_FALSE(event_data("event: a\n\n"));
  EXPECT_FALSE(event_data("data: a\ndata: b\n\n"));
  EXPECT_FALSE(event_data("\n\n"));
}

TEST(IsEventStream, LooksAtTheMediaType) {
  EXPECT_TRUE(is_event_stream("text/event-stream; charset=utf-8"));
  EXPECT_TRUE(is_event_stream("Text/Event-Stream"));
  EXPECT_FALSE(is_event_stream("application/json"));
  EXPECT_FALSE(is_event_stream(std::nullopt));
}

}  // namespace
}  // namespace handoff::sglang
