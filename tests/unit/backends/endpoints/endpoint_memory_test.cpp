#include "backends/endpoints/endpoint_memory.hpp"

#include <gtest/gtest.h>

namespace handoff::endpoints {
namespace {

TEST(EndpointMemory, AValueIsBelievedForFiveSeconds) {
  EndpointMemory<int> memory;
  EXPECT_EQ(memory.find("a 1", 1000), nullptr);
  memory.remember("a 1", 7, 1000);
  ASSERT_NE(memory.find("a 1", 6000), nullptr);
  EXPECT_EQ(*memory.find("a 1", 6000), 7);
  EXPECT_EQ(memory.find("a 2", 6000), nullptr);
  EXPECT_EQ(memory.find("a 1", 6001), nullptr);
  EXPECT_EQ(memory.find("a 1", 1000), nullptr) << "what was too old is gone";
}

TEST(EndpointMemory, SuccessWithTheSameValueMakesItFresh) {
  EndpointMemory<int> memory;
  memory.confirm("a 1", 7, 1000);
  EXPECT_EQ(memory.find("a 1", 1000), nullptr) << "nothing to confirm";
  memory.remember("a 1", 7, 1000);
  memory.confirm("a 1", 7, 4000);
  EXPECT_NE(memory.find("a 1", 9000), nullptr);
  memory.confirm("a 1", 8, 9000);  // of an exchange that began before the engine's restart
  EXPECT_EQ(memory.find("a 1", 9001), nullptr);
}

TEST(EndpointMemory, ForgetsWhatIsToldToBeWrong) {
  EndpointMemory<int> memory;
  memory.remember("a 1", 7, 1000);
  memory.forget("a 1");
  memory.forget("b 1");
  EXPECT_EQ(memory.find("a 1", 1000), nullptr);
}

TEST(EndpointMemory, TheOldestGoesFirstWhenItIsFull) {
  EndpointMemory<int> memory;
  for (unsigned i = 0; i < 1024; ++i) memory.remember("a " + std::to_string(i), 0, 1000 + i);
  memory.confirm("a 0", 0, 4000);
  memory.remember("b 1", 1, 4000);
  EXPECT_NE(memory.find("a 0", 4000), nullptr);
  EXPECT_EQ(memory.find("a 1", 4000), nullptr);
  EXPECT_NE(memory.find("a 2", 4000), nullptr);
  EXPECT_NE(memory.find("b 1", 4000), nullptr);
  memory.remember("b 1", 2, 4000);
  EXPECT_NE(memory.find("a 2", 4000), nullptr) << "a new value of a known one needs no room";
}

TEST(EndpointMemory, KeysTellEndpointsApart) {
  handoff_request one{};
  one.prefill_host = sdk::bytes("::1");
  one.prefill_port = 80;
  handoff_request other = one;
  other.prefill_host = sdk::bytes("::18");
  other.prefill_port = 0;
  EXPECT_NE(endpoint_key(one), endpoint_key(other));
}

}  // namespace
}  // namespace handoff::endpoints
