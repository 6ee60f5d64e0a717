#include "epp/policy_file/policy_file.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

std::string error_of(std::string_view text) {
  auto read = parse_policy_file(text);
  const auto* error = std::get_if<PolicyFileError>(&read);
  return error == nullptr ? "" : error->text;
}

TEST(PolicyFile, ReadsEveryKey) {
  auto read = parse_policy_file(R"(
default_policy_family: standard
uncached_isl_buckets:
  - {min_tokens: 0, bucket: short}
  - {min_tokens: 4096, bucket: long}
policy_classes:
  - {name: a, policy_family: standard, cache_bucket: short, quantum: 10, prefill_busy_threshold_frac: 1.5}
  - {name: b, policy_family: standard, cache_bucket: long, queue_policy: lcfs, prefill_busy_threshold: 7}
  - name: c
    queue_policy: wspt
    request_queue_limit_per_worker: 0
    raw_isl_token_queue_limit_per_worker: 1
    cached_token_queue_limit_per_worker: 2
)");
  const auto* profile = std::get_if<PolicyProfile>(&read);
  ASSERT_NE(profile, nullptr) << std::get<PolicyFileError>(read).text;
  EXPECT_EQ(profile->default_policy_family, "standard");
  ASSERT_EQ(profile->uncached_isl_buckets.size(), 2U);
  EXPECT_EQ(profile->uncached_isl_buckets[1].min_tokens, 4096U);
  EXPECT_EQ(profile->uncached_isl_buckets[1].bucket, "long");
  ASSERT_EQ(profile->policy_classes.size(), 3U);
  const auto& [a, b, c] =
      std::tie(profile->policy_classes[0], profile->policy_classes[1], profile->policy_classes[2]);
  EXPECT_EQ(a.policy_family, "standard");
  EXPECT_EQ(a.cache_bucket, "short");
  EXPECT_EQ(a.quantum, 10U);
  EXPECT_EQ(a.prefill_busy_threshold_frac, 1.5);
  EXPECT_EQ(a.queue_policy, QueueOrder::kFcfs);
  EXPECT_EQ(b.queue_policy, QueueOrder::kLcfs);
  EXPECT_EQ(b.prefill_busy_threshold, 7U);
  EXPECT_EQ(c.queue_policy, QueueOrder::kWspt);
  EXPECT_EQ(c.request_queue_limit_per_worker, 0U);
  EXPECT_EQ(c.raw_isl_token_queue_limit_per_worker, 1U);
  EXPECT_EQ(c.cached_token_queue_limit_per_worker, 2U);

  SelectorConfig config;
  config.policy = *profile;
  EXPECT_TRUE(config.validate().empty());
  EXPECT_EQ(profile->classify("", 5000), 1U);
  EXPECT_EQ(profile->classify("c", 5000), 2U);
}

TEST(PolicyFile, SaysWhereAndWhatIsAccepted) {
  struct Case {
    const char* text;
    const char* said;
  };
  const Case cases[] = {
      {"policy_classes: [", "not YAML (line"},
      {"[]", "the file (line 1): must be a map"},
      {"default_policy_family: x", "policy_classes is missing"},
      {"policies: []", "unknown key 'policies' (line 1); accepted: default_policy_family"},
      {"policy_classes: {}", "policy_classes (line 1): must be a list"},
      {"policy_classes: [{name: a, nam: b}]", "policy_classes[0]: unknown key 'nam'"},
      {"policy_classes: [{name: a, name: b}]", "given twice"},
      {"policy_classes: [{name: [a]}]", "policy_classes[0].name (line 1): not one value"},
      {"policy_classes: [{name: a, quantum: 0}]",
       "quantum (line 1): '0'; accepted: a whole number of at least 1"},
      {"policy_classes: [{name: a, quantum: -1}]", "'-1'"},
      {"policy_classes: [{name: a, prefill_busy_threshold: 99999999999999999999}]", "prefill_busy_threshold"},
      {"policy_classes: [{name: a, prefill_busy_threshold_frac: .nan}]", "a decimal number"},
      {"policy_classes: [{name: a, queue_policy: lifo}]", "fcfs, lcfs or wspt"},
      {"uncached_isl_buckets: [{min_tokens: x, bucket: b}]", "uncached_isl_buckets[0].min_tokens"},
      {"policy_classes: [{name: a}]\n---\npolicy_classes: [{name: b}]",
       "has a second YAML document (line 2)"},
      {"worker_selection: {}\npolicy_classes: [{name: a}]", "unknown key 'worker_selection'"},
  };
  for (const auto& [text, said] : cases) {
    EXPECT_NE(error_of(text).find(said), std::string::npos) << text << "\n" << error_of(text);
  }
}

TEST(PolicyFile, IsBounded) {
  EXPECT_NE(error_of(std::string(kMaxPolicyFileBytes + 1, ' ')).find("larger than"), std::string::npos);
  EXPECT_EQ(error_of(std::string(10'000, '[')),
            "has lists and maps within each other more than 16 deep (line 1)");
  EXPECT_EQ(error_of(","), "has a second YAML document (line 1)");
  std::string many = "policy_classes:\n";
  for (std::size_t i = 0; i <= kMaxPolicyClasses; ++i) many += "  - {name: c" + std::to_string(i) + "}\n";
  EXPECT_NE(error_of(many).find("at most"), std::string::npos);
  std::string wrong = "policy_classes:\n";
  for (int i = 0; i < 20; ++i) wrong += "  - {name: c, bad: 1}\n";
  EXPECT_NE(error_of(wrong).find("and 10 more"), std::string::npos);
  EXPECT_NE(
      std::get<PolicyFileError>(read_policy_file("/nonexistent/policy.yaml")).text.find("can't be opened"),
      std::string::npos);
}

}  // namespace
}  // namespace handoff::epp
