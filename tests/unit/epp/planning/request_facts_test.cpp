#include "epp/planning/request_facts.hpp"

#include <gtest/gtest.h>

namespace handoff::epp {
namespace {

HeaderBlock head(std::string_view path, std::vector<std::pair<std::string, std::string>> more = {},
                 std::string_view method = "POST") {
  HeaderBlock headers;
  headers.add(":method", method);
  headers.add(":path", path);
  for (const auto& [name, value] : more) headers.add(name, value);
  return headers;
}

RequestFacts facts_of(std::string_view path, const std::string& body,
                      std::vector<std::pair<std::string, std::string>> more = {}) {
  return read_request_facts(head(path, std::move(more)), &body);
}

TEST(RequestFacts, KnowsWhichPlanARequestGets) {
  struct Row {
    const char* path;
    const char* body;
    RequestKind kind;
    const char* why;
  };
  const Row rows[] = {
      {"/v1/chat/completions", "{}", RequestKind::kChat, "chat"},
      {"/v1/chat/completions?x=1", "{}", RequestKind::kChat, "a query does not matter"},
      {"/v1/completions", R"({"prompt":"a"})", RequestKind::kCompletions, "completions"},
      {"/v1/completions", R"({"prompt":["a","b"]})", RequestKind::kCompletions, "several prompts"},
      {"/v1/completions", R"({"prompt":[1, 2,3]})", RequestKind::kTokens, "token ids"},
      {"/v1/completions", R"({"prompt":[[1],[2]]})", RequestKind::kCompletions, "lists of token ids"},
      {"/v1/responses", "{}", RequestKind::kSized, "responses"},
      {"/v1/messages", "{}", RequestKind::kSized, "messages"},
      {"/inference/v1/generate", R"({"token_ids":[7]})", RequestKind::kTokens, "vLLM generate"},
      {"/generate", R"({"input_ids":[7,8]})", RequestKind::kTokens, "SGLang generate"},
      {"/generate", R"({"text":"a"})", RequestKind::kSized, "SGLang generate with text"},
      {"/v1/embeddings", "{}", RequestKind::kAny, "embeddings"},
      {"/v1/chat/completions", "{", RequestKind::kAny, "bad JSON: the engine's answer is better"},
      {"/v1/chat/completions", "[]", RequestKind::kAny, "not an object"},
      {"/v1/chat/completions", "", RequestKind::kAny, "empty"},
      {"/v1/chat/completions", "\xef\xbb\xbf{}", RequestKind::kAny, "another encoding"},
      {"/v1/chat/completions/x", "{}", RequestKind::kAny, "another path"},
  };
  for (const Row& row : rows) EXPECT_EQ(facts_of(row.path, row.body).kind, row.kind) << row.why;
  const std::string body = "{}";
  EXPECT_EQ(read_request_facts(head("/v1/chat/completions", {}, "GET"), &body).kind, RequestKind::kAny);
  EXPECT_EQ(read_request_facts(head("/v1/models", {}, "GET"), nullptr).kind, RequestKind::kAny);
  EXPECT_EQ(facts_of("/v1/chat/completions", "{}", {{"content-encoding", "gzip"}}).kind, RequestKind::kAny);
  EXPECT_EQ(facts_of("/v1/chat/completions", "{}", {{"content-encoding", "identity"}}).kind,
            RequestKind::kChat);
}

TEST(RequestFacts, ReadsTheBody) {
  const auto facts =
      facts_of("/v1/chat/completions", R"({"model":"m\u0041","stream":true,"cache_salt":"s",)"
                                       R"("nvext":{"agent_hints":{"osl":200,"priority":2.5}}})");
  EXPECT_EQ(facts.model, "mA");
  EXPECT_TRUE(facts.streams);
  EXPECT_EQ(facts.cache_salt, "s");
  EXPECT_FALSE(facts.can_take_salt);
  EXPECT_EQ(facts.expected_output_tokens, 200U);
  EXPECT_EQ(facts.priority_jump, 2.5);
}

TEST(RequestFacts, TakesWhatIsWrongForAbsent) {
  const auto facts = facts_of("/v1/chat/completions",
                              R"({"model":7,"stream":"true","cache_salt":null,)"
                              R"("nvext":{"agent_hints":{"osl":-1,"priority":"x"}}})",
                              {{"x-dynamo-meta-priority", "nan"},
                               {"x-dynamo-meta-strict-priority", "-3"},
                               {"x-dynamo-meta-slo-ttft-ms", "0"},
                               {"x-dynamo-session-id", std::string(300, 'x')}});
  EXPECT_EQ(facts.model, "");
  EXPECT_FALSE(facts.streams);
  EXPECT_EQ(facts.cache_salt, "");
  EXPECT_EQ(facts.expected_output_tokens, std::nullopt);
  EXPECT_EQ(facts.priority_jump, 0.0);
  EXPECT_EQ(facts.strict_priority, 0U);
  EXPECT_EQ(facts.first_token_goal, std::nullopt);
  EXPECT_EQ(facts.session_id, "");
}

TEST(RequestFacts, ReadsHeaders) {
  const auto facts = facts_of("/v1/chat/completions", R"({"nvext":{"agent_hints":{"priority":9}}})",
                              {{"x-request-id", "r1"},
                               {"x-tenant-id", "t0"},
                               {"x-tenant-id", "t1"},
                               {"x-dynamo-meta-policy-class", " gold "},
                               {"x-dynamo-meta-priority", "1.5"},
                               {"x-dynamo-meta-strict-priority", "4"},
                               {"x-dynamo-meta-slo-ttft-ms", "250"}});
  EXPECT_EQ(facts.request_id, "r1");
  EXPECT_EQ(facts.tenant, "t1");
  EXPECT_EQ(facts.policy_class, "gold");
  EXPECT_EQ(facts.priority_jump, 1.5) << "a header wins";
  EXPECT_EQ(facts.strict_priority, 4U);
  EXPECT_EQ(facts.first_token_goal, std::chrono::milliseconds(250));
  EXPECT_EQ(facts.metadata_headers, 4U);
}

TEST(RequestFacts, ReadsASessionFromTheFirstHeaderThatNamesOne) {
  const std::string body = "{}";
  const auto session = [&](std::vector<std::pair<std::string, std::string>> headers) {
    return facts_of("/v1/completions", body, std::move(headers));
  };
  EXPECT_EQ(session({{"x-session-id", "d"}, {"thread-id", "c"}}).session_id, "c");
  EXPECT_EQ(session({{"thread-id", "c"}, {"x-claude-code-session-id", "b"}}).session_id, "b");
  EXPECT_EQ(session({{"x-session-id", "d"}, {"x-dynamo-session-id", "a"}}).session_id, "a");
  EXPECT_EQ(session({{"x-dynamo-session-id", " "}, {"x-session-id", "d"}}).session_id, "d");
  EXPECT_FALSE(session({{"x-session-id", "d"}}).session_final);
  EXPECT_TRUE(session({{"x-session-id", "d"}, {"x-dynamo-session-final", "true"}}).session_final);
}

TEST(RequestFacts, ReadsTheWorkerThatAClientInsistsOn) {
  const auto facts =
      facts_of("/v1/chat/completions",
               R"({"nvext":{"backend_instance_id":7,"decode_worker_id":8,"dp_rank":1,"cache_salt":"t"}})");
  EXPECT_EQ(facts.pinned_worker, 7U);
  EXPECT_EQ(facts.pinned_rank, 1U);
  EXPECT_FALSE(facts.pins_prefill);
  EXPECT_EQ(facts.tenant, "t");
  EXPECT_EQ(facts_of("/v1/completions", R"({"nvext":{"decode_worker_id":8}})").pinned_worker, 8U);
  EXPECT_TRUE(facts_of("/v1/completions", R"({"nvext":{"prefill_worker_id":8}})").pins_prefill);
  EXPECT_EQ(facts_of("/v1/completions", R"({"nvext":{"cache_salt":"t"}})", {{"x-tenant-id", "h"}}).tenant,
            "h");
  for (const char* wrong :
       {R"({"nvext":{"backend_instance_id":-1}})", R"({"nvext":{"backend_instance_id":"7"}})",
        R"({"nvext":{"backend_instance_id":1.5}})", R"({"nvext":7})",
        R"({"nvext":{"backend_instance_id":18446744073709551616}})"}) {
    EXPECT_EQ(facts_of("/v1/completions", wrong).pinned_worker, std::nullopt) << wrong;
  }
}

TEST(RequestFacts, LeavesHintsUnreadWhereTheyDoNotCount) {
  const std::string body =
      R"({"nvext":{"backend_instance_id":7,"prefill_worker_id":1,"agent_hints":{"osl":200,"priority":3}}})";
  const auto facts = read_request_facts(head("/v1/chat/completions"), &body, false);
  EXPECT_EQ(facts.pinned_worker, std::nullopt);
  EXPECT_FALSE(facts.pins_prefill);
  EXPECT_EQ(facts.expected_output_tokens, std::nullopt);
  EXPECT_EQ(facts.priority_jump, 0.0);
}

TEST(RequestFacts, EstimatesTokensFromBytes) {
  RequestFacts facts;
  EXPECT_EQ(facts.estimated_tokens(), 1U);
  facts.body_bytes = 400;
  EXPECT_EQ(facts.estimated_tokens(), 100U);
}

TEST(RequestFacts, ParsesTokenIds) {
  std::vector<std::uint32_t> ids;
  EXPECT_TRUE(parse_token_ids("[ 1,2 ,\n4294967295]", ids));
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{1, 2, 4294967295U}));
  EXPECT_TRUE(parse_token_ids("[]", ids));
  EXPECT_TRUE(ids.empty());
  for (const char* text : {"[1,]", "[,1]", "[1 2]", "[-1]", "[1.0]", "[4294967296]", "[[1]]", "[1", "1", "",
                           "[1]x", "[\"1\"]", "[null]"}) {
    EXPECT_FALSE(parse_token_ids(text, ids)) << text;
  }
}

TEST(RequestFacts, AddsASaltAndNothingElse) {
  EXPECT_EQ(with_cache_salt(R"( {"a" : 1e400})", "t\"1"), R"( {"cache_salt":"t\"1","a" : 1e400})");
  EXPECT_EQ(with_cache_salt("{ }", "t"), R"({"cache_salt":"t" })");
}

}  // namespace
}  // namespace handoff::epp
