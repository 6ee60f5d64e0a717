// Loads the plugin given as argument as the sidecar would, creates it with its default settings, plays three
// requests on each of its routes and prints what it asked for. Exit 1 and one line if it can't be used.
#include <iostream>
#include <string>
#include <vector>

#include "sidecar/backend_host.hpp"
#include "tests/plugins/stub_host.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: handoff-load-plugin FILE\n";
    return 2;
  }
  try {
    const auto backend = handoff::sidecar::load_backend(argv[1]);
    std::cout << backend.name() << ' ' << backend.protocol() << '\n';
    std::vector<std::string> values;
    for (const auto& key : backend.config_keys()) {
      std::cout << key.name << '=' << key.default_value << '\n';
      values.emplace_back(key.default_value);
    }
    StubHost host;
    const auto instance = backend.create_instance(host.api(), values);
    for (const auto& route : backend.routes()) {
      std::cout << route.method << ' ' << route.path << '\n';
      const std::string body = R"({"model":"m", "stream":true, "max_tokens":90, "x":1})";
      std::cout << host.run(*instance, host.request(route.path, body, true));
      std::cout << "engines answer 503:\n";
      std::cout << host.run(*instance, host.request(route.path, body, true), 503);
      std::cout << "no prefill endpoint:\n";
      std::cout << host.run(*instance, host.request(route.path, body, false));
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
