// handoff-docs: prints the parts of docs/ that come from tables in the code.
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "sidecar/sidecar_error.hpp"
#include "sidecar/start_up.hpp"

int main(int argc, char** argv) {
  using namespace handoff::sidecar;
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  try {
    if (!arguments.empty() && arguments.front() == "settings") {
      std::fputs(settings_markdown({arguments.begin() + 1, arguments.end()}).c_str(), stdout);
      return 0;
    }
    if (arguments.size() == 1 && arguments.front() == "errors") {
      std::fputs(error_table_markdown().c_str(), stdout);
      return 0;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "handoff-docs: %s\n", error.what());
    return 1;
  }
  std::fputs("usage: handoff-docs settings [BACKEND...] | handoff-docs errors\n", stderr);
  return 2;
}
