#include "shared/config/command_line.hpp"

#include "shared/config/printable.hpp"

namespace handoff::config {

CommandLine split_arguments(const std::vector<std::string>& arguments,
                            const std::function<bool(std::string_view)>& takes_value) {
  CommandLine line;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "-h") {
      line.flags.push_back({"help", std::nullopt});
      continue;
    }
    if (!argument.starts_with("--") || argument.size() == 2) {
      line.strays.push_back(i + 1);
      continue;
    }
    const auto equals = argument.find('=');
    if (equals != std::string_view::npos) {
      line.flags.push_back(
          {std::string(argument.substr(2, equals - 2)), std::string(trim(argument.substr(equals + 1)))});
      continue;
    }
    Flag flag{std::string(argument.substr(2)), std::nullopt};
    const bool value_follows = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
    if (value_follows && takes_value(flag.name)) flag.value = trim(arguments[++i]);
    line.flags.push_back(std::move(flag));
  }
  return line;
}

}  // namespace handoff::config
