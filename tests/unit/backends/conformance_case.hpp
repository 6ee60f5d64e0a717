#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/backends/plugin_harness.hpp"

namespace handoff::plugin_test {

/// Plugins under test: those named by HANDOFF_PLUGIN_PATHS (colon-separated) in the environment, so that a
/// plugin built elsewhere can be checked with the same program; else those of this tree.
std::vector<std::string> plugin_paths();
/// The file's name without folder and suffix, in letters that GoogleTest allows.
std::string plugin_label(const ::testing::TestParamInfo<std::string>& info);

/// What a client may send on the plugin's routes: good, odd and hostile. `marker` is in every object.
std::vector<std::string> request_bodies(std::string_view marker);
/// What an engine may reply: handoffs of each engine, answers without one, and rubbish.
std::vector<std::string> reply_bodies(std::string_view marker);

/// One suite instance per plugin, with a backend of default settings.
class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  Conformance() : plugin_(GetParam()), backend_(plugin_, host_) {}

  const handoff_backend_api& api() const { return plugin_.api(); }
  std::vector<std::string> paths() const;
  Request request(std::string path, std::string body) const;

  Plugin plugin_;
  Host host_;
  Backend backend_;
};

}  // namespace handoff::plugin_test
