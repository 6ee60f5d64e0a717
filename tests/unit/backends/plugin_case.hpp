#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/backends/plugin_harness.hpp"

namespace handoff::plugin_test {

/// A plugin with the given settings. The test fails if the plugin asked its host for what the boundary
/// forbids.
class PluginCase : public ::testing::Test {
 protected:
  PluginCase(const std::string& plugin, const std::map<std::string, std::string>& settings);
  ~PluginCase() override;

  std::unique_ptr<Exchange> begin(std::string_view path, std::string body, std::vector<Header> headers = {},
                                  Endpoint prefill = {});
  /// The one action that a call caused.
  static Action only(const std::vector<Action>& actions);
  /// The first leg of a request that must be disaggregated: it is prefill's.
  Leg first_leg(std::string_view path, std::string body, std::vector<Header> headers = {});
  /// What follows a first reply with status 200.
  Action after_first_reply(std::string_view path, std::string body, std::string reply,
                           std::vector<Header> headers = {});
  /// The leg that follows it: it is decode's.
  Leg second_leg(std::string_view path, std::string body, std::string reply,
                 std::vector<Header> headers = {});
  /// Why the request is not disaggregated; empty if it is.
  std::string decode_only_reason(std::string_view path, std::string body);

  Plugin plugin_;
  Host host_;
  Backend backend_;
};

}  // namespace handoff::plugin_test
