#pragma once

#include <gtest/gtest.h>

#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/backends/plugin_harness.hpp"

namespace handoff::plugin_test {

/// Plugins under test: those named by HANDOFF_PLUGIN_PATHS (colon-separated) in the environment, so that a
/// plugin built elsewhere can be checked with the same program; else those of this tree.
std::vector<std::string> plugin_paths();

/// A plugin and one of the ways to run it.
struct Variant {
  std::string path;
  std::map<std::string, std::string> settings;  ///< none: all defaults
};
/// Each plugin with its defaults, and once more for each other choice of each of its settings, as far as it
/// starts with that alone.
std::vector<Variant> plugin_variants();
/// The file's name without folder and suffix and the choice, in letters that GoogleTest allows.
std::string variant_label(const ::testing::TestParamInfo<Variant>& info);
void PrintTo(const Variant& variant, std::ostream* out);

/// What a client may send on the plugin's routes: good, odd and hostile. `marker` is in every object.
std::vector<std::string> request_bodies(std::string_view marker);
/// What an engine may reply: handoffs of each engine, answers without one, and rubbish.
std::vector<std::string> reply_bodies(std::string_view marker);

/// One suite instance per variant.
class Conformance : public ::testing::TestWithParam<Variant> {
 protected:
  Conformance() : plugin_(GetParam().path), backend_(plugin_, host_, GetParam().settings) {}

  const handoff_backend_api& api() const { return plugin_.api(); }
  std::vector<std::string> paths() const;
  Request request(std::string path, std::string body) const;

  Plugin plugin_;
  Host host_;
  Backend backend_;
};

}  // namespace handoff::plugin_test
