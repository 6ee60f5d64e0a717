#include "epp/policy_file/policy_file.hpp"

#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "epp/yaml_text/yaml_text.hpp"
#include "shared/config/setting_file.hpp"

namespace handoff::epp {
namespace {

constexpr std::size_t kMaxShownText = 60;
constexpr std::size_t kMaxNameLength = 253;
constexpr std::size_t kMaxProblems = 10;
constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 53;

std::string shown(const std::string& text) {
  std::string out = "'";
  for (const char c : text.substr(0, kMaxShownText)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + "'";
}

template <typename Number>
bool reads_as(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

class Reader {
 public:
  std::variant<PolicyProfile, PolicyFileError> read(std::string_view text) {
    if (text.size() > kMaxPolicyFileBytes) {
      return PolicyFileError{"larger than " + std::to_string(kMaxPolicyFileBytes) + " bytes"};
    }
    const auto read = read_yaml(text);
    if (const auto* problem = std::get_if<YamlProblem>(&read)) return PolicyFileError{problem->text};
    read_root(std::get<YAML::Node>(read));
    if (problems_ == 0) return std::move(profile_);
    if (problems_ > kMaxProblems) text_ += "; and " + std::to_string(problems_ - kMaxProblems) + " more";
    return PolicyFileError{std::move(text_)};
  }

 private:
  using Member = std::function<void(const YAML::Node& value, const std::string& place)>;
  struct Key {
    const char* name;
    Member read;
  };

  void read_root(const YAML::Node& root) {
    read_map(root, "the file",
             {{"default_policy_family",
               [&](const auto& value, const auto& place) {
                 read_name(value, place, profile_.default_policy_family);
               }},
              {"uncached_isl_buckets",
               [&](const auto& value, const auto& place) {
                 read_list(value, place, kMaxIslBuckets,
                           [&](const auto& node, const auto& where) { read_bucket(node, where); });
               }},
              {"policy_classes", [&](const auto& value, const auto& place) {
                 read_list(value, place, kMaxPolicyClasses,
                           [&](const auto& node, const auto& where) { read_class(node, where); });
               }}});
    if (problems_ == 0 && profile_.policy_classes.empty()) add_problem("policy_classes is missing or empty");
  }

  void read_bucket(const YAML::Node& node, const std::string& place) {
    UncachedIslBucket bucket;
    read_map(
        node, place,
        {{"min_tokens",
          [&](const auto& value, const auto& where) { read_count(value, where, 0, bucket.min_tokens); }},
         {"bucket", [&](const auto& value, const auto& where) { read_name(value, where, bucket.bucket); }}});
    profile_.uncached_isl_buckets.push_back(std::move(bucket));
  }

  void read_class(const YAML::Node& node, const std::string& place) {
    PolicyClass made;
    made.name.clear();
    const auto limit = [this](std::optional<std::uint64_t>& field) -> Member {
      return [this, &field](const YAML::Node& value, const std::string& where) {
        std::uint64_t read = 0;
        if (read_count(value, where, 0, read)) field = read;
      };
    };
    read_map(node, place,
             {{"name", [&](const auto& value, const auto& where) { read_name(value, where, made.name); }},
              {"policy_family",
               [&](const auto& value, const auto& where) { read_name(value, where, made.policy_family); }},
              {"cache_bucket",
               [&](const auto& value, const auto& where) { read_name(value, where, made.cache_bucket); }},
              {"queue_policy",
               [&](const auto& value, const auto& where) { read_order(value, where, made.queue_policy); }},
              {"quantum",
               [&](const auto& value, const auto& where) { read_count(value, where, 1, made.quantum); }},
              {"prefill_busy_threshold", limit(made.prefill_busy_threshold)},
              {"prefill_busy_threshold_frac",
               [&](const auto& value, const auto& where) {
                 read_fraction(value, where, made.prefill_busy_threshold_frac);
               }},
              {"request_queue_limit_per_worker", limit(made.request_queue_limit_per_worker)},
              {"raw_isl_token_queue_limit_per_worker", limit(made.raw_isl_token_queue_limit_per_worker)},
              {"cached_token_queue_limit_per_worker", limit(made.cached_token_queue_limit_per_worker)}});
    profile_.policy_classes.push_back(std::move(made));
  }

  void read_map(const YAML::Node& node, const std::string& place, const std::vector<Key>& keys) {
    if (!node.IsMap()) {
      add_problem(place + at(node) + ": must be a map");
      return;
    }
    std::set<std::string> seen;
    for (const auto& member : node) {
      const std::string name = member.first.as<std::string>("");
      const Key* known = nullptr;
      for (const Key& key : keys) {
        if (name == key.name) known = &key;
      }
      if (known == nullptr) {
        std::string accepted;
        for (const Key& key : keys) accepted += (accepted.empty() ? "" : ", ") + std::string(key.name);
        add_problem(place + ": unknown key " + shown(name) + at(member.first) + "; accepted: " + accepted);
      } else if (!seen.insert(name).second) {
        add_problem(place + "." + name + at(member.first) + ": given twice");
      } else {
        known->read(member.second, place == "the file" ? name : place + "." + name);
      }
    }
  }

  void read_list(const YAML::Node& node, const std::string& place, std::size_t most, const Member& item) {
    if (!node.IsSequence() || node.size() > most) {
      add_problem(place + at(node) + ": must be a list of at most " + std::to_string(most));
      return;
    }
    for (std::size_t i = 0; i < node.size(); ++i) item(node[i], place + "[" + std::to_string(i) + "]");
  }

  bool read_name(const YAML::Node& value, const std::string& place, std::string& out) {
    out = value.IsScalar() ? value.Scalar() : std::string();
    if (!out.empty() && out.size() <= kMaxNameLength) return true;
    return wrong(value, place, "a text of 1 to " + std::to_string(kMaxNameLength) + " characters");
  }

  bool read_count(const YAML::Node& value, const std::string& place, std::uint64_t least,
                  std::uint64_t& out) {
    if (value.IsScalar() && reads_as(value.Scalar(), out) && out >= least && out <= kMaxTokens) return true;
    return wrong(value, place, "a whole number of at least " + std::to_string(least));
  }

  bool read_fraction(const YAML::Node& value, const std::string& place, std::optional<double>& out) {
    double read = 0.0;
    if (value.IsScalar() && reads_as(value.Scalar(), read) && std::isfinite(read) && read >= 0.0) {
      out = read;
      return true;
    }
    return wrong(value, place, "a decimal number of at least 0");
  }

  bool read_order(const YAML::Node& value, const std::string& place, QueueOrder& out) {
    const std::string text = value.IsScalar() ? value.Scalar() : std::string();
    if (text == "fcfs") {
      out = QueueOrder::kFcfs;
    } else if (text == "lcfs") {
      out = QueueOrder::kLcfs;
    } else if (text == "wspt") {
      out = QueueOrder::kWspt;
    } else {
      return wrong(value, place, "fcfs, lcfs or wspt");
    }
    return true;
  }

  bool wrong(const YAML::Node& value, const std::string& place, const std::string& accepted) {
    add_problem(place + at(value) + ": " + (value.IsScalar() ? shown(value.Scalar()) : "not one value") +
                "; accepted: " + accepted);
    return false;
  }

  static std::string at(const YAML::Node& node) { return line_of(node); }

  void add_problem(const std::string& problem) {
    if (++problems_ > kMaxProblems) return;
    if (problems_ > 1) text_ += "; ";
    text_ += problem;
  }

  PolicyProfile profile_;
  std::string text_;
  std::size_t problems_ = 0;
};

}  // namespace

std::variant<PolicyProfile, PolicyFileError> parse_policy_file(std::string_view text) {
  return Reader().read(text);
}

std::variant<PolicyProfile, PolicyFileError> read_policy_file(const std::string& path) {
  const config::SettingFile file = config::read_setting_file(path, kMaxPolicyFileBytes);
  if (!file.error.empty()) return PolicyFileError{"the file " + file.error};
  return parse_policy_file(file.text);
}

}  // namespace handoff::epp
