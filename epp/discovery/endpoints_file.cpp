#include "epp/discovery/endpoints_file.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "epp/discovery/worker_id.hpp"
#include "epp/yaml_text/yaml_text.hpp"

namespace handoff::epp {
namespace {

constexpr std::size_t kMaxProblems = 10;
constexpr std::size_t kMaxNameLength = 253;
constexpr std::size_t kMaxLabels = 64;
constexpr std::size_t kMaxShownText = 60;

// A value of the file within a message: short, and without what would break a log line.
std::string shown(const std::string& text) {
  std::string out = "'";
  for (const char c : text.substr(0, kMaxShownText)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kMaxShownText ? "…'" : "'");
}

bool is_visible(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

// An IP address in the one spelling that all of its spellings have in common, so that two entries for one
// place are seen. None: it is no IP address.
std::optional<std::string> canonical_address(const std::string& text) {
  in_addr four{};
  in6_addr six{};
  std::array<char, INET6_ADDRSTRLEN> out{};
  if (inet_pton(AF_INET, text.c_str(), &four) == 1) return text;
  if (inet_pton(AF_INET6, text.c_str(), &six) != 1) return std::nullopt;
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    inet_ntop(AF_INET, &six.s6_addr[12], out.data(), out.size());
  } else {
    inet_ntop(AF_INET6, &six, out.data(), out.size());
  }
  return out.data();
}

bool is_dns_name(const std::string& name) {
  const auto fine = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  if (name.empty() || name.size() > kMaxNameLength || !std::all_of(name.begin(), name.end(), fine))
    return false;
  // Four numbers that inet_pton refused are a mistyped address, not a name.
  return name.find_first_not_of("0123456789.") != std::string::npos;
}

class FileReader {
 public:
  std::variant<std::vector<FileEndpoint>, EndpointsFileError> read(std::string_view text) {
    if (text.size() > kMaxEndpointsFileBytes)
      return EndpointsFileError{"larger than " + std::to_string(kMaxEndpointsFileBytes) + " bytes"};
    const auto read = read_yaml(text);
    if (const auto* problem = std::get_if<YamlProblem>(&read)) return EndpointsFileError{problem->text};
    std::vector<FileEndpoint> found = read_root(std::get<YAML::Node>(read));
    if (problems_ == 0) return found;
    if (problems_ > kMaxProblems) text_ += "; and " + std::to_string(problems_ - kMaxProblems) + " more";
    return EndpointsFileError{std::move(text_)};
  }

 private:
  std::vector<FileEndpoint> read_root(const YAML::Node& root) {
    std::vector<FileEndpoint> found;
    if (!root.IsMap()) {
      add_problem("must be a map with the key 'endpoints'");
      return found;
    }
    bool is_given = false;
    for (const auto& member : root) {
      const std::string key = member.first.as<std::string>("");
      if (key != "endpoints") {
        add_problem("unknown key " + shown(key) + at(member.first) + "; accepted: endpoints");
      } else if (std::exchange(is_given, true)) {
        add_problem(key + at(member.first) + ": given twice");
      }
    }
    const YAML::Node list = root["endpoints"];
    if (!list || !list.IsSequence()) {
      add_problem("endpoints: must be a list");
      return found;
    }
    if (list.size() > kMaxFileEndpoints) {
      add_problem("endpoints: more than " + std::to_string(kMaxFileEndpoints));
      return found;
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      place_ = "endpoints[" + std::to_string(i) + "]";
      read_endpoint(list[i], found);
      if (label_bytes_ > kMaxEndpointsFileBytes) break;
    }
    check_label_bytes();
    return found;
  }

  void read_endpoint(const YAML::Node& node, std::vector<FileEndpoint>& found) {
    if (!node.IsMap()) {
      add_problem(place_ + at(node) + ": must be a map");
      return;
    }
    FileEndpoint out;
    std::set<std::string> seen;
    for (const auto& member : node) {
      const std::string key = member.first.as<std::string>("");
      if (!seen.insert(key).second) {
        add_problem(place_ + "." + key + at(member.first) + ": given twice");
      } else if (!read_member(key, member.second, out)) {
        add_problem(
            place_ + ": unknown key " + shown(key) + at(member.first) +
            "; accepted: name, address, port, role, kv_event_port, kv_replay_port, data_parallel_size, "
            "kv_events, health_path, labels");
      }
    }
    for (const char* required : {"name", "address", "port"}) {
      if (!seen.contains(required)) add_problem(place_ + at(node) + ": " + required + " is missing");
    }
    check(node, out);
    found.push_back(std::move(out));
  }

  // False: there is no such key.
  bool read_member(const std::string& key, const YAML::Node& value, FileEndpoint& out) {
    Endpoint& endpoint = out.endpoint;
    if (key == "name") {
      const std::string text = scalar(key, value);
      if (is_visible(text) && text.size() <= kMaxNameLength) {
        endpoint.name = text;
        endpoint.worker_id = worker_id_of(text);
      } else {
        wrong(key, value, "1 to 253 visible ASCII characters");
      }
    } else if (key == "address") {
      const std::string text = scalar(key, value);
      const auto address = canonical_address(text);
      out.is_name = !address;
      if (out.is_name && !is_dns_name(text))
        wrong(key, value, "an IPv4 or IPv6 address without brackets, or a DNS name");
      endpoint.address = address.value_or(text);
    } else if (key == "port") {
      if (const auto port = number(key, value, 1, 65535)) endpoint.port = static_cast<std::uint16_t>(*port);
    } else if (key == "role") {
      const std::string text = scalar(key, value);
      if (text == "prefill") {
        endpoint.role = EndpointRole::kPrefill;
      } else if (text == "decode") {
        endpoint.role = EndpointRole::kDecode;
      } else {
        wrong(key, value, "prefill or decode");
      }
    } else if (key == "kv_event_port") {
      if (const auto port = number(key, value, 1, 65535))
        endpoint.kv_event_port = static_cast<std::uint16_t>(*port);
    } else if (key == "kv_replay_port") {
      if (const auto port = number(key, value, 1, 65535))
        endpoint.kv_replay_port = static_cast<std::uint16_t>(*port);
    } else if (key == "data_parallel_size") {
      if (const auto size = number(key, value, 1, 1024))
        endpoint.data_parallel_size = static_cast<std::uint32_t>(*size);
    } else if (key == "kv_events") {
      const std::string text = scalar(key, value);
      if (text != "true" && text != "false") wrong(key, value, "true or false");
      endpoint.kv_events = text == "true";
    } else if (key == "health_path") {
      out.health_path = scalar(key, value);
      if (!is_visible(out.health_path) || out.health_path.front() != '/' || out.health_path.size() > 1024)
        wrong(key, value, "a path that begins with /");
    } else if (key == "labels") {
      read_labels(value, endpoint);
    } else {
      return false;
    }
    return true;
  }

  void read_labels(const YAML::Node& node, Endpoint& endpoint) {
    if (!node.IsMap() || node.size() > kMaxLabels) {
      add_problem(place_ + ".labels" + at(node) + ": must be a map of at most " + std::to_string(kMaxLabels) +
                  " texts");
      return;
    }
    for (const auto& label : node) {
      const std::string key = label.first.as<std::string>("");
      const std::string value = scalar("labels." + key, label.second);
      label_bytes_ += key.size() + value.size();
      if (key.empty() || key.size() > 317 || value.size() > 1024)
        add_problem(place_ + ".labels" + at(label.first) + ": key or value is empty or too long");
      if (!endpoint.labels.emplace(key, value).second)
        add_problem(place_ + ".labels" + at(label.first) + ": " + shown(key) + " is given twice");
    }
  }

  // A label set that is given once and referred to a thousand times is there a thousand times.
  void check_label_bytes() {
    if (label_bytes_ > kMaxEndpointsFileBytes)
      add_problem("labels: more than " + std::to_string(kMaxEndpointsFileBytes) + " bytes in all");
  }

  // Rules over several keys, and over several endpoints.
  void check(const YAML::Node& node, const FileEndpoint& out) {
    const Endpoint& endpoint = out.endpoint;
    for (const auto& [key, port] : {std::pair{"kv_event_port", endpoint.kv_event_port},
                                    std::pair{"kv_replay_port", endpoint.kv_replay_port}}) {
      if (port && *port + endpoint.data_parallel_size - 1 > 65535)
        add_problem(place_ + "." + key + at(node) + ": the ports of " +
                    std::to_string(endpoint.data_parallel_size) + " ranks end above 65535");
    }
    if (endpoint.kv_events && endpoint.kv_event_port && endpoint.kv_replay_port) {
      const int apart = std::abs(*endpoint.kv_event_port - *endpoint.kv_replay_port);
      const int ranks = static_cast<int>(endpoint.data_parallel_size);
      if (apart < ranks)  // no engine can listen twice on one port
        add_problem(place_ + ".kv_replay_port" + at(node) + ": the ports of " + std::to_string(ranks) +
                    " ranks are also those of kv_event_port; keep them " + std::to_string(ranks) +
                    " or more apart");
    }
    if (!endpoint.name.empty()) {
      const auto [other, is_new] = place_of_name_.emplace(endpoint.name, place_);
      if (!is_new)
        add_problem(place_ + ".name" + at(node) + ": " + shown(endpoint.name) + " is the name of " +
                    other->second);
      const auto [same_id, id_is_new] = place_of_id_.emplace(endpoint.worker_id, place_);
      if (is_new && !id_is_new)
        add_problem(place_ + ".name" + at(node) + ": gives the same worker id as " + same_id->second +
                    "; change one of the names");
    }
    if (!endpoint.address.empty() && endpoint.port != 0) {
      const auto [other, is_new] =
          place_of_address_.emplace(socket_address(endpoint.address, endpoint.port), place_);
      if (!is_new) add_problem(place_ + at(node) + ": address and port are those of " + other->second);
    }
  }

  std::string scalar(const std::string& key, const YAML::Node& value) {
    if (value.IsScalar()) return value.Scalar();
    add_problem(place_ + "." + key + at(value) + ": must be one value");
    return {};
  }

  std::optional<std::uint64_t> number(const std::string& key, const YAML::Node& value, std::uint64_t least,
                                      std::uint64_t most) {
    const std::string text = value.IsScalar() ? value.Scalar() : std::string();
    std::uint64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error == std::errc() && end == text.data() + text.size() && !text.empty() && out >= least &&
        out <= most)
      return out;
    wrong(key, value, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return std::nullopt;
  }

  void wrong(const std::string& key, const YAML::Node& value, const std::string& accepted) {
    add_problem(place_ + "." + key + at(value) + ": " +
                (value.IsScalar() ? shown(value.Scalar()) : "a list or map") + "; accepted: " + accepted);
  }

  static std::string at(const YAML::Node& node) { return line_of(node); }

  void add_problem(const std::string& problem) {
    if (++problems_ > kMaxProblems) return;
    if (problems_ > 1) text_ += "; ";
    text_ += problem;
  }

  std::string place_;
  std::size_t label_bytes_ = 0;
  std::map<std::string, std::string> place_of_name_;
  std::map<std::uint64_t, std::string> place_of_id_;
  std::map<std::string, std::string> place_of_address_;
  std::string text_;
  std::size_t problems_ = 0;
};

}  // namespace

std::variant<std::vector<FileEndpoint>, EndpointsFileError> parse_endpoints_file(std::string_view text) {
  return FileReader().read(text);
}

}  // namespace handoff::epp
