// From command line and environment to a plan that can be run.
#pragma once

#include <string>
#include <vector>

#include "shared/config/environment.hpp"
#include "sidecar/loop_services.hpp"

namespace handoff::sidecar {

/// What main() is to do.
struct StartUp {
  enum class What { run, print_and_exit, refuse } what = What::run;
  std::string text;  // print_and_exit: for standard output; refuse: for standard error
  SharedPlan plan;
  std::vector<std::string> backend_values;  // one per key that the backend declares
  std::vector<std::string> warnings;
  std::string settings;  // effective, NAME=value lines, secrets masked
};

/// Loads the backend, reads every setting, and checks all of it at once.
StartUp prepare(const std::vector<std::string>& arguments, const config::Environment& environment);

/// Every setting with its default as Markdown tables, those of the named backends included. Throws BackendLoadError.
std::string settings_markdown(const std::vector<std::string>& backends);

}  // namespace handoff::sidecar
