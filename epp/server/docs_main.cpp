// handoff-epp-docs: prints the parts of docs/ that come from the Endpoint Picker's tables.
#include <cstdio>
#include <string_view>

#include "epp/ext_proc/epp_error.hpp"
#include "epp/server/epp_config.hpp"

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "settings") {
    std::fputs(handoff::epp::epp_settings_markdown().c_str(), stdout);
    return 0;
  }
  if (what == "errors") {
    std::fputs(handoff::epp::epp_error_table_markdown().c_str(), stdout);
    return 0;
  }
  std::fputs("usage: handoff-epp-docs settings | handoff-epp-docs errors\n", stderr);
  return 2;
}
