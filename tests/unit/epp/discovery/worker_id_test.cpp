#include "epp/discovery/worker_id.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

// Computed with rustc's DefaultHasher over a str.
TEST(WorkerId, IsDynamosHashOfAPodsName) {
  EXPECT_EQ(worker_id_of(""), 121655548788207U);
  EXPECT_EQ(worker_id_of("worker-a"), 282580808468563U);
  EXPECT_EQ(worker_id_of("vllm-0"), 1943803597606491U);
  EXPECT_EQ(worker_id_of("vllm-agg-7d9c5b6f4-abcde"), 5898454470241275U);
}

}  // namespace
}  // namespace handoff::epp
