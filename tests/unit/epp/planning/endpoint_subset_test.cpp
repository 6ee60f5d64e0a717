#include "epp/planning/endpoint_subset.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

struct Row {
  std::vector<std::string> entries;
  std::string address;
  std::uint16_t port;
  bool allowed;
  const char* why;
};

TEST(EndpointSubset, ComparesAddressesByValue) {
  const Row rows[] = {
      {{"10.0.0.1:8000"}, "10.0.0.1", 8000, true, "exact"},
      {{"10.0.0.1:8001"}, "10.0.0.1", 8000, false, "another port"},
      {{"10.0.0.1"}, "10.0.0.1", 8000, true, "an address alone is all its ports"},
      {{"10.0.0.2", " 10.0.0.1:8000 "}, "10.0.0.1", 8000, true, "blanks around it"},
      {{"10.0.0.10"}, "10.0.0.1", 8000, false, "no prefixes"},
      {{"[fd00::1]:8000"}, "fd00::1", 8000, true, "bracketed"},
      {{"[fd00:0:0::1]:8000"}, "fd00::1", 8000, true, "another spelling"},
      {{"FD00::1"}, "fd00::1", 8000, true, "upper case, alone"},
      {{"[fd00::1]"}, "fd00::1", 9, true, "bracketed without port"},
      {{"[fd00::1]:8001"}, "fd00::1", 8000, false, "another port"},
      {{"::ffff:10.0.0.1"}, "10.0.0.1", 8000, true, "mapped"},
      {{}, "10.0.0.1", 8000, false, "nothing allowed"},
      {{""}, "10.0.0.1", 8000, false, "empty entry"},
      {{"host:8000"}, "10.0.0.1", 8000, false, "not an address"},
      {{"10.0.0.1:"}, "10.0.0.1", 8000, false, "no port behind the colon"},
      {{"10.0.0.1:0"}, "10.0.0.1", 8000, false, "port 0"},
      {{"10.0.0.1:99999"}, "10.0.0.1", 8000, false, "port out of range"},
      {{"[fd00::1"}, "fd00::1", 8000, false, "open bracket"},
      {{"[fd00::1]8000"}, "fd00::1", 8000, false, "no colon"},
      {{std::string(500, '1')}, "10.0.0.1", 8000, false, "long"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(EndpointSubset(row.entries).allows(row.address, row.port), row.allowed) << row.why;
  }
}

}  // namespace
}  // namespace handoff::epp
