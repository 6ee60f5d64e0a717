#pragma once

#include <string>
#include <vector>

#include "epp/server/epp_config.hpp"
#include "shared/config/environment.hpp"

namespace handoff::epp {

// What main() is to do with its command line.
struct StartUp {
  enum class What : std::uint8_t { run, print_and_exit, refuse } what = What::run;
  std::string text;                   // print_and_exit: for standard output; refuse: for standard error
  std::vector<std::string> warnings;  // for the log, or beside what is printed
};

// Reads every setting into `config` and checks all of them at once.
StartUp read_settings(const std::vector<std::string>& arguments, const config::Environment& environment,
                      EppConfig& config);

}  // namespace handoff::epp
